"""Gated activation behind slot `gated_activation`."""

from __future__ import annotations

from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.slots import GatedActivationOp, GatedActivationSpec, Quantized, QuantSpec


class GatedActivation:
    """act(gate) * up.

    Args:
        ctx: The build context.
        size: Channels of the result.
        activation: "silu", "gelu" or "gelu_tanh".
        quant: What the layer behind takes (`Linear.input_quant`).
    """

    def __init__(
        self, ctx: BuildContext, size: int, activation: str, quant: QuantSpec | None = None
    ) -> None:
        plain = GatedActivationSpec(size, activation, ctx.dtype)
        spec = ctx.fused("gated_activation", plain, quant)
        self._op: GatedActivationOp = ctx.selector.choose("gated_activation", spec)

    def __call__(self, x: Tensor) -> Tensor | Quantized:
        """Map [num_tokens, 2 * size] to [num_tokens, size]."""
        return self._op(x)
