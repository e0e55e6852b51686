"""Recurrent blocks of Griffin with their projections, as mixers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Linear, Matrix, RgLru
from hotshoe.slots import Quantized
from hotshoe_models.spec import DecoderSpec

if TYPE_CHECKING:
    from hotshoe_models.mixers import Rotaries

#: Prefix of a block within a layer.
BLOCK = "temporal_block"


class RecurrentMixer:
    """A recurrent block over the states of sequences, whole on each rank."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        block, size = spec.recurrent, spec.hidden_size
        assert block is not None
        prefix = f"{spec.names.layer.format(i)}{BLOCK}."
        quantize, inner = spec.quantizes("state", ctx.format), block.inner_size
        into = [(f"{prefix}linear_x", inner), (f"{prefix}linear_y", inner)]
        out = [(f"{prefix}linear_out", size)]
        self._in = Linear(ctx, Matrix(ctx, into, size, bias=True, quantize=quantize))
        self._recurrence = RgLru(ctx, block, prefix)
        self._out = Linear(ctx, Matrix(ctx, out, inner, bias=True, quantize=quantize))
        self.input_quant = self._in.input_quant

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `hotshoe_models.mixers.Mixer`."""
        out = self._recurrence(self._in(hidden), batch)
        return self._out(out if keep is None else out[keep])
