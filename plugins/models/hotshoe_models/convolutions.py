"""Short convolutions between their projections, as mixers, and what config.json says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Linear, Matrix, ShortConv
from hotshoe.models import ModelConfig
from hotshoe.slots import Quantized, ShortConvSpec
from hotshoe_models.spec import ConvBlock, DecoderSpec
from hotshoe_models.values import flag, refuse

if TYPE_CHECKING:
    from hotshoe_models.mixers import Rotaries


def conv_block(config: ModelConfig, ctx: BuildContext) -> ConvBlock:
    """Describe a model's short convolutions.

    Raises:
        CheckpointError: A value is missing or malformed.
    """
    width = config.size("conv_L_cache")
    if width < 2:
        raise refuse(config, "conv_L_cache", "convolves over two tokens or more")
    spec = ShortConvSpec(
        config.size("hidden_size"),
        width,
        ctx.dtype,
        ctx.conv_state_dtype or ctx.dtype,
        ctx.block_size,
        ctx.checkpoints,
    )
    return ConvBlock(conv=spec, bias=flag(config, "conv_bias"))


class ConvMixer:
    """A short convolution over the last inputs of sequences, whole on each rank."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        block, size = spec.conv, spec.hidden_size
        assert block is not None
        prefix = f"{spec.names.layer.format(i)}{block.name}."
        quantize, inner = spec.quantizes("state", ctx.format), block.conv.inner_size
        into, out = [(f"{prefix}in_proj", 3 * inner)], [(f"{prefix}out_proj", size)]
        self._in = Linear(ctx, Matrix(ctx, into, size, bias=block.bias, quantize=quantize))
        self._conv = ShortConv(ctx, block.conv, prefix, block.bias)
        self._out = Linear(ctx, Matrix(ctx, out, inner, bias=block.bias, quantize=quantize))
        self.input_quant = self._in.input_quant

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `hotshoe_models.mixers.Mixer`."""
        out = self._conv(self._in(hidden), batch)
        return self._out(out if keep is None else out[keep])
