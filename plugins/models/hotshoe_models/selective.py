"""Mamba-1 blocks with their projections, as mixers, and what config.json says of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Linear, Matrix, SelectiveScan
from hotshoe.models import ModelConfig
from hotshoe.slots import Quantized, SelectiveScanSpec
from hotshoe_models.spec import DecoderSpec, SelectiveBlock
from hotshoe_models.values import activation, refuse

if TYPE_CHECKING:
    from hotshoe_models.mixers import Rotaries

#: Keys of models of such blocks alone, by what they say.
KEYS = {
    "state": "state_size",
    "conv": "conv_kernel",
    "expand": "expand",
    "rank": "time_step_rank",
}


def selective_block(
    config: ModelConfig,
    ctx: BuildContext,
    keys: Mapping[str, str] = KEYS,
    *,
    inner: int | None = None,
    norm_eps: float | None = None,
    **differences: Any,
) -> SelectiveBlock:
    """Describe a model's Mamba-1 blocks.

    Args:
        keys: Names of sizes in config.json.
        inner: Channels of a block; default: `expand` times the hidden size.
        norm_eps: See `hotshoe.slots.SelectiveScanSpec`.
        differences: Other fields of the block.

    Raises:
        CheckpointError: A value is missing or malformed.
    """
    size, rank = config.size("hidden_size"), keys["rank"]
    if config.get(rank) in (None, "auto"):
        made = math.ceil(size / 16)
    else:
        made = config.size(rank)
    if config.size(keys["conv"]) < 2:
        raise refuse(config, keys["conv"], "convolves over two tokens or more")
    if activation(config, "hidden_act") != "silu":
        raise refuse(config, "hidden_act", "knows only silu in its state-space blocks")
    spec = SelectiveScanSpec(
        inner or config.size(keys["expand"]) * size,
        config.size(keys["state"]),
        made,
        config.size(keys["conv"]),
        ctx.dtype,
        ctx.conv_state_dtype or ctx.dtype,
        ctx.state_dtype,
        ctx.block_size,
        ctx.checkpoints,
        norm_eps,
    )
    return SelectiveBlock(scan=spec, **differences)


class SelectiveMixer:
    """A Mamba-1 block over the states of sequences, whole on each rank."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        block, size = spec.selective, spec.hidden_size
        assert block is not None
        prefix = f"{spec.names.layer.format(i)}{block.name}."
        quantize = spec.quantizes("state", ctx.format)
        inner = block.scan.inner_size
        into, out = [(f"{prefix}in_proj", 2 * inner)], [(f"{prefix}out_proj", size)]
        self._in = Linear(ctx, Matrix(ctx, into, size, bias=block.bias, quantize=quantize))
        self._scan = SelectiveScan(ctx, block.scan, prefix, block.conv_bias, block.norms)
        self._out = Linear(ctx, Matrix(ctx, out, inner, bias=block.bias, quantize=quantize))
        self.input_quant = self._in.input_quant

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `hotshoe_models.mixers.Mixer`."""
        out = self._scan(self._in(hidden), batch)
        return self._out(out if keep is None else out[keep])
