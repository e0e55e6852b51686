"""Gated activation behind slot `gated_activation`."""

from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.slots import GatedActivationOp, GatedActivationSpec


class GatedActivation:
    """act(gate) * up; activation is "silu", "gelu" or "gelu_tanh"."""

    def __init__(self, ctx: BuildContext, size: int, activation: str) -> None:
        spec = GatedActivationSpec(size, activation, ctx.dtype)
        self._op: GatedActivationOp = ctx.selector.choose("gated_activation", spec)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [num_tokens, 2 * size] to [num_tokens, size]."""
        return self._op(x)
