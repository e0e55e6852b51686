"""The mixer of attention to a window and to compressed entries, with its projections.

Names are those of DeepSeek-V4, the only family that has it; sizes are in a `CompressedSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    CompressedAttention,
    Compressor,
    CompressorNames,
    EntryIndexer,
    ForwardBatch,
    Holder,
    Linear,
    Matrix,
    RMSNorm,
    Rotary,
    Rotation,
    Section,
)
from hotshoe.layers.indexer import Asked
from hotshoe.slots import CompressedAttentionSpec, CompressSpec, IndexerSpec, Quantized, renewed
from hotshoe.slots.reference.linear import plain_weight
from hotshoe_models.spec import CompressedSpec, Compression, DecoderSpec

WHAT = "attention heads"


class CompressedMixer:
    """See `hotshoe_models.mixers.Mixer`. Ranks divide groups of heads; entries are on all."""

    #: The layer before hands over plain numbers: compressors take no others.
    input_quant = None

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Mapping[Rotation, Rotary]
    ) -> None:
        own, layer = spec.compressed, spec.layers[i]
        assert own is not None and layer.rotation is not None
        prefix, rotary = spec.names.layer.format(i) + "attn.", rotaries[layer.rotation]
        stored, size = not ctx.format.online, spec.hidden_size
        parts = [(f"{prefix}wq_a", own.q_dim), (f"{prefix}wkv", spec.head_dim)]
        self._in = Linear(ctx, Matrix(ctx, parts, size))
        self._q_norm = RMSNorm(ctx, f"{prefix}q_norm", own.q_dim, spec.norm_eps)
        self._row_norm = RMSNorm(ctx, f"{prefix}norm", spec.head_dim, spec.norm_eps)
        self._head_norm = RMSNorm(ctx, None, spec.head_dim, spec.norm_eps)
        heads = ctx.split(WHAT, Section(spec.num_heads, spec.head_dim))
        q_b = [(f"{prefix}wq_b", spec.num_heads * spec.head_dim)]
        self._q_b = Linear(ctx, Matrix(ctx, q_b, own.q_dim, outputs=heads))
        self._q_dim, self._head_dim = own.q_dim, spec.head_dim
        self._compress: _Rows | None = None
        self._index: _Index | None = None
        if layer.compression is not None:
            name, made = f"{prefix}compressor.", _spec(spec, own, ctx, layer.compression)
            self._compress = _Rows(ctx, made, name, size)
            if layer.compression.index is not None:
                self._index = _Index(spec, ctx, layer.compression, rotary, prefix, stored)
        self._attention = self._build_attention(spec, own, ctx, layer.compression, rotary, prefix)
        self._o_a = _Grouped(ctx, f"{prefix}wo_a", own, spec.num_heads * spec.head_dim, stored)
        outer = ctx.split("groups of heads", Section(own.groups, own.group_dim))
        o_b = [(f"{prefix}wo_b", size)]
        self._o_b = Linear(ctx, Matrix(ctx, o_b, own.groups * own.group_dim, inputs=outer))

    def _build_attention(
        self,
        spec: DecoderSpec,
        own: CompressedSpec,
        ctx: BuildContext,
        compression: Compression | None,
        rotary: Rotary,
        prefix: str,
    ) -> CompressedAttention:
        index = None if compression is None else compression.index
        asked = CompressedAttentionSpec(
            spec.num_heads,
            spec.head_dim,
            own.rope_dim,
            own.window,
            None if compression is None else compression.group,
            None if index is None else index.top_k,
            ctx.dtype,
            ctx.kv_dtype,
            ctx.block_size,
            spec.attention_scale,
        )
        compress = None
        if self._compress is not None:
            compress = partial(Compressor, ctx, self._compress.spec, rotary, self._compress.names)
        indexer = None if self._index is None else self._index.indexer
        return CompressedAttention(ctx, asked, rotary, f"{prefix}attn_sink", compress, indexer)

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        assert isinstance(hidden, Tensor)
        both = self._in(hidden)
        latents = _plain(self._q_norm(both[:, : self._q_dim].contiguous()))
        row = _plain(self._row_norm(both[:, self._q_dim :].contiguous()))
        heads = self._q_b(latents).view(-1, self._head_dim)
        q = _plain(self._head_norm(heads)).view(len(row), -1, self._head_dim)
        asked: Asked | None = None
        if self._compress is not None:
            assert self._attention.compressor is not None
            self._attention.compressor.write(self._compress(hidden), batch)
        if self._index is not None:
            asked = self._index(hidden, latents, batch)
        out = self._attention(q, row, batch, asked)
        return self._o_b(self._o_a(out if keep is None else out[keep]))


def _plain(x: Tensor | Quantized) -> Tensor:
    assert isinstance(x, Tensor)
    return x


def _spec(
    spec: DecoderSpec, own: CompressedSpec, ctx: BuildContext, compression: Compression
) -> CompressSpec:
    """Describe the entries that attention reads."""
    sizes = (spec.head_dim, own.rope_dim, compression.group, compression.overlap, spec.norm_eps)
    return CompressSpec(*sizes, ctx.dtype, ctx.kv_dtype, ctx.block_size)


class _Rows:
    """What tokens bring to a compressor: values and gates of the hidden states."""

    def __init__(self, ctx: BuildContext, spec: CompressSpec, prefix: str, size: int) -> None:
        self.spec = spec
        self.names = CompressorNames(f"{prefix}ape", f"{prefix}norm")
        parts = [(f"{prefix}wkv", spec.channels), (f"{prefix}wgate", spec.channels)]
        self._matrix = Linear(ctx, Matrix(ctx, parts, size, quantize=False))

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return [num_tokens, 2 * channels]."""
        return self._matrix(hidden)


class _Index:
    """What entries are chosen by: heads of the latents that q is made of, weights of the hidden
    states, and entries of its own. All ranks have all of it."""

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        compression: Compression,
        rotary: Rotary,
        prefix: str,
        stored: bool,
    ) -> None:
        own, index = spec.compressed, compression.index
        assert own is not None and index is not None
        name, rope = f"{prefix}indexer.", own.rope_dim
        group, overlap = compression.group, compression.overlap
        types = (ctx.dtype, ctx.kv_dtype, ctx.block_size)
        made = CompressSpec(index.head_dim, rope, group, overlap, spec.norm_eps, *types)
        self._rows = _Rows(ctx, made, f"{name}compressor.", spec.hidden_size)
        sizes = (index.num_heads, index.head_dim, rope, index.top_k)
        asked = IndexerSpec(*sizes, ctx.dtype, ctx.kv_dtype, made.per_block, interleaved=True)
        self.indexer = EntryIndexer(ctx, asked, made, rotary, self._rows.names)

        def linear(part: str, rows: int, columns: int, quantize: bool, out: str | None) -> Linear:
            return Linear(ctx, Matrix(ctx, [(name + part, rows)], columns, quantize=quantize), out)

        rows = index.num_heads * index.head_dim
        self._q = linear("wq_b", rows, own.q_dim, stored, None)
        self._weights = linear("weights_proj", index.num_heads, spec.hidden_size, False, "float32")

    def __call__(self, hidden: Tensor, latents: Tensor, batch: ForwardBatch) -> Asked:
        """Write what the step's tokens bring, and return what they choose by."""
        self.indexer.compressor.write(self._rows(hidden), batch)
        return self.indexer.ask(self._q(latents), self._weights(hidden), batch)


class _Grouped:
    """A matrix for each group of heads, which are kept in the model's type."""

    def __init__(
        self, ctx: BuildContext, name: str, own: CompressedSpec, channels: int, stored: bool
    ) -> None:
        split = ctx.split("groups of heads", Section(own.groups, own.group_dim))
        rows, self._columns = own.groups * own.group_dim, channels // own.groups
        parts = [(name, rows)]
        self._matrix = Matrix(ctx, parts, self._columns, quantize=stored, outputs=split)
        self._rank_groups = split.size // own.group_dim
        self._device, self._weight = ctx.device, torch.empty(0)
        self._matrix.deliver(ctx, self._load, Holder("linear", "layer", ctx.dtype, self.state))
        ctx.weight_bytes.append(lambda: self._weight.nbytes)

    def _load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        weight = plain_weight(self._matrix.spec, tensors)
        self._weight = renewed(self._weight, weight.to(self._device, copy=True))

    def state(self) -> dict[str, Tensor]:
        """Return the weight of this rank's groups, their rows one behind the other."""
        return {"weight": self._weight} if self._weight.numel() else {}

    def __call__(self, x: Tensor) -> Tensor:
        """Map [n, channels of this rank's heads] to [n, this rank's groups * group_dim]."""
        groups = self._rank_groups
        heads = x.view(len(x), groups, self._columns).transpose(0, 1)
        weight = self._weight.view(groups, -1, self._columns)
        return torch.bmm(heads, weight.mT).transpose(0, 1).flatten(1)
