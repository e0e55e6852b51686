"""Reference of slot `lora`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import LoraOp
from hotshoe.slots.specs import LoraSpec


def build(spec: LoraSpec, facts: DeviceFacts) -> LoraOp:
    """Multiply all tokens by all adapters that are used, and keep of each token its own.

    Ranks are so small that two plain products cost less than products token by token, and no
    token moves. The intermediate of `rank` numbers is rounded to the type of x.
    """

    def add(
        y: Tensor, x: Tensor, a: Tensor, b: Tensor, places: Tensor, used: Sequence[int]
    ) -> None:
        if not used:
            return
        first, end = min(used), max(used) + 1
        own = places.unsqueeze(1) == torch.arange(first, end, device=places.device)
        low = x @ a[first:end].flatten(0, 1).T  # [num_tokens, (end - first) * rank]
        kept = low.view(len(x), end - first, spec.rank).masked_fill(~own.unsqueeze(2), 0)
        y += kept.flatten(1) @ b[first:end].flatten(0, 1)

    return add
