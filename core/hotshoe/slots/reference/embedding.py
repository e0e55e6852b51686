"""Reference of slot `embedding`."""

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import EmbeddingOp
from hotshoe.slots.specs import EmbeddingSpec


def build(spec: EmbeddingSpec, facts: DeviceFacts) -> EmbeddingOp:
    """Build the gather; a scale multiplies in the table's dtype."""

    def embed(ids: Tensor, table: Tensor) -> Tensor:
        rows = table[ids.long()]
        return rows if spec.scale == 1.0 else rows * spec.scale

    return embed
