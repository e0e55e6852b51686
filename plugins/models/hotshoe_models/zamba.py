"""Zamba 1: Mamba-1 blocks of several heads, and one transformer that serves some of the layers.

A head is a block of its own between the projections. Defaults are those of transformers'
ZambaConfig.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    ForwardBatch,
    Linear,
    Matrix,
    Rotary,
    Rotation,
    SelectiveScan,
    SmallWeight,
    Split,
    decay_rates,
)
from hotshoe.models import ModelConfig
from hotshoe.slots import Quantized, SelectiveScanSpec
from hotshoe_models.spec import DecoderSpec, LayerSpec, SelectiveBlock
from hotshoe_models.values import (
    activation,
    decoder_spec,
    flag,
    optional_size,
    refuse,
    with_defaults,
)
from hotshoe_models.zamba2 import KINDS, NAMES, SERVED
from hotshoe_models.zamba_layers import Sharing, ZambaDecoder

DEFAULTS = {
    "vocab_size": 32000,
    "tie_word_embeddings": True,
    "hidden_size": 3712,
    "attention_hidden_size": None,
    "intermediate_size": 14848,
    "num_hidden_layers": 76,
    "num_attention_heads": 16,
    "attention_head_dim": None,
    "num_key_value_heads": 16,
    "n_mamba_heads": 2,
    "hidden_act": "gelu",
    "hidden_mamba_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "attn_layer_period": 6,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": "auto",
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "layers_block_type": None,
}
#: Kinds of the first layers, where a file does not say any.
FIRST = (False, False, True)


class HeadsMixer:
    """Mamba-1 blocks side by side between two projections, whole on each rank.

    Args:
        heads: How many.
    """

    input_quant = None

    def __init__(
        self,
        heads: int,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: Mapping[Rotation, Rotary],
    ) -> None:
        block, size = spec.selective, spec.hidden_size
        assert block is not None
        self._heads, self._size = heads, block.scan.inner_size
        prefix, inner = f"{spec.names.layer.format(i)}{block.name}.", heads * self._size
        quantize = spec.quantizes("state", ctx.format)
        into, out = [(f"{prefix}in_proj", 2 * inner)], [(f"{prefix}out_proj", size)]
        self._in = Linear(ctx, Matrix(ctx, into, size, bias=block.bias, quantize=quantize))
        self._scans = [
            SelectiveScan(ctx, block.scan, prefix, block.conv_bias, weights=weights)
            for weights in _by_head(block, prefix, heads)
        ]
        self._out = Linear(ctx, Matrix(ctx, out, inner, bias=block.bias, quantize=quantize))

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `hotshoe_models.mixers.Mixer`."""
        # Columns are x and z of each channel in turn.
        projected = self._in(hidden).view(-1, self._heads, self._size, 2)
        heads = projected.permute(1, 0, 3, 2).reshape(self._heads, -1, 2 * self._size)
        out = projected.new_empty((len(projected), self._heads, self._size))
        for i, (scan, own) in enumerate(zip(self._scans, heads, strict=True)):
            # Written at once: the next call may leave its result where this one's is.
            out[:, i] = scan(own, batch)
        out = out.flatten(1)
        return self._out(out if keep is None else out[keep])


def _by_head(block: SelectiveBlock, prefix: str, heads: int) -> list[dict[str, SmallWeight]]:
    """Describe the weights of each head, which lie in one tensor for all."""
    scan = block.scan
    size, made = scan.inner_size, sum(scan.made)

    def weight(head: int, name: str, *shape: int, exact: bool = False) -> SmallWeight:
        rows = 1 if heads > 1 else math.prod(shape)
        split = Split(((head * rows, (head + 1) * rows),))
        tensors = ((prefix + name, (heads, *shape), split),)
        return SmallWeight(tensors, exact, lambda own: own.reshape(shape))

    def channels(head: int, name: str, *shape: int) -> SmallWeight:
        split = Split(((head * size, (head + 1) * size),))
        return SmallWeight(((f"{prefix}conv1d.{name}", (heads * size, *shape), split),))

    found = []
    for head in range(heads):
        rates = weight(head, "A_log", size, scan.state_size, exact=True)
        parts = {
            "conv": channels(head, "weight", 1, scan.conv_width),
            "project": weight(head, "x_proj_weight", made, size),
            "dt": weight(head, "dt_proj_weight", size, scan.dt_rank),
            "dt_bias": weight(head, "dt_proj_bias", size, exact=True),
            "a": replace(rates, read=lambda own: decay_rates(own.reshape(size, -1))),
            "d": weight(head, "D", size, exact=True),
        }
        found.append(parts | ({"conv_bias": channels(head, "bias")} if block.conv_bias else {}))
    return found


def build(config: ModelConfig, ctx: BuildContext) -> ZambaDecoder:
    """Build ZambaForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    heads, size = config.size("num_attention_heads"), config.size("hidden_size")
    head_dim = optional_size(config, "attention_head_dim") or 2 * size // heads
    if config.size("attention_hidden_size", 2 * size) != 2 * size:
        raise refuse(config, "attention_hidden_size", f"attends to {2 * size} channels")
    served, mamba_heads = _served(config), config.size("n_mamba_heads")
    layers = tuple(
        LayerSpec(None, mixer="selective", names=SERVED if one else NAMES) for one in served
    )
    spec = decoder_spec(
        config,
        layers,
        head_dim=head_dim,
        attention_scale=(head_dim / 2) ** -0.5,
        selective=_block(config, ctx, mamba_heads),
        names=NAMES,
    )
    sharing = Sharing(
        tuple(i for i, one in enumerate(served) if one),
        1,
        0,
        False,
        "shared_transf",
        ("gate_proj", "up_proj"),
        partial(HeadsMixer, mamba_heads),
    )
    return ZambaDecoder(spec, ctx, sharing)


def _served(config: ModelConfig) -> list[bool]:
    """Return which layers the transformer serves."""
    key, count = "layers_block_type", config.size("num_hidden_layers")
    given: Any = config.get(key)
    if given is None:
        period, offset = config.size("attn_layer_period"), config.require("attn_layer_offset")
        return [*FIRST, *(i % period == offset for i in range(count - len(FIRST)))][:count]
    known = isinstance(given, list) and all(isinstance(x, str) and x in KINDS for x in given)
    if not known or len(given) != count:
        raise refuse(config, key, f"needs {', '.join(KINDS)} for each of {count} layers")
    return [KINDS[kind] for kind in given]


def _block(config: ModelConfig, ctx: BuildContext, heads: int) -> SelectiveBlock:
    """Describe one head of the Mamba-1 blocks."""
    size = config.size("hidden_size")
    inner = config.size("mamba_expand") * size
    if inner % heads:
        raise refuse(config, "n_mamba_heads", f"has {inner} channels to divide among them")
    if config.size("mamba_d_conv") < 2:
        raise refuse(config, "mamba_d_conv", "convolves over two tokens or more")
    if activation(config, "hidden_mamba_act") != "silu":
        raise refuse(config, "hidden_mamba_act", "knows only silu in its state-space blocks")
    auto = config.get("mamba_dt_rank") == "auto"
    scan = SelectiveScanSpec(
        inner // heads,
        config.size("mamba_d_state"),
        math.ceil(size / 16) if auto else config.size("mamba_dt_rank"),
        config.size("mamba_d_conv"),
        ctx.dtype,
        ctx.conv_state_dtype or ctx.dtype,
        ctx.state_dtype,
        ctx.block_size,
        ctx.checkpoints,
    )
    conv_bias = flag(config, "mamba_conv_bias")
    bias = flag(config, "mamba_proj_bias")
    return SelectiveBlock(scan=scan, name="mamba", bias=bias, conv_bias=conv_bias)
