"""Layers of Qwen4-Exp: residual streams that gates mix channel by channel, embeddings of n-grams
that join them, and attention to chosen groups of tokens.

Streams lie side by side in one row of a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.layers import (
    BuildContext,
    CompressorNames,
    EntryIndexer,
    ForwardBatch,
    GroupAttention,
    Linear,
    Matrix,
    RMSNorm,
    Rotary,
    Rotation,
    Split,
    stored_kv_scales,
)
from hotshoe.layers.states import SmallWeight, StateLayer
from hotshoe.slots import (
    CompressSpec,
    IndexerSpec,
    Quantized,
    ShortConvSpec,
    ShortConvWeights,
)
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.hyper import of_digits, with_digits
from hotshoe_models.mixers import MIXERS
from hotshoe_models.mlps import build_mlp
from hotshoe_models.ngrams import NGramEmbedding, NGramSpec
from hotshoe_models.per_layer import Vector
from hotshoe_models.projections import attention_spec, o_matrix, qk_norm_of, qkv_matrix
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import refuse_stages

#: Least size of a gate whose root is taken.
LEAST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen4Parts:
    """The parts that a `DecoderSpec` lacks.

    Attributes:
        count, rank: Residual streams, and channels between the two matrices that mix them.
        heads, head_dim: Of the indexer.
        top_k, group: Groups that it chooses, and tokens of one.
        ngrams: Tables by layers.
        taps, apart: Tokens that a table's convolution sees, and how many of them lie between two.
    """

    count: int
    rank: int
    heads: int
    head_dim: int
    top_k: int
    group: int
    ngrams: Mapping[int, NGramSpec]
    taps: int
    apart: int


class Qwen4Decoder(DenseDecoder):
    """See `DenseDecoder`. Layers hand on streams [n, count * hidden_size].

    Raises:
        ConfigError: Stages are to divide the layers.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, parts: Qwen4Parts) -> None:
        refuse_stages(ctx, "layers of this model hand on several residual streams")
        self._parts = parts
        super().__init__(spec, ctx)
        self._leave = GatedStreams(spec, ctx, "model.hyper_connection_mixer.", parts, ends=True)

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        self._qwen4_layers = [Qwen4Layer(spec, ctx, i, rotaries, self._parts) for i in own]

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings for ids [num_tokens] int32, and behind them the digits of ids."""
        hidden = super().embed(ids)
        return with_digits(hidden, ids) if self._parts.ngrams else hidden

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """See `hotshoe.models.base.Model`."""
        digits = hidden[:, self.hidden_size :]
        streams = hidden[:, : self.hidden_size].repeat(1, self._parts.count)
        for i, layer in enumerate(self._qwen4_layers):
            keep = batch.outputs_at if i + 1 == len(self._qwen4_layers) else None
            streams = layer(streams, digits, batch, keep)
        return self._leave(streams)[0]


class Qwen4Layer:
    """Mixer and MLP, each of which takes a mean of the streams and joins them by gates."""

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: dict[Rotation, Rotary],
        parts: Qwen4Parts,
    ) -> None:
        prefix = spec.names.layer.format(i)
        self._around_mixer = GatedStreams(spec, ctx, f"{prefix}attn_hyper_connection.", parts)
        self._around_mlp = GatedStreams(spec, ctx, f"{prefix}mlp_hyper_connection.", parts)
        self._ngrams: NGramInput | None = None
        if i in parts.ngrams:
            self._ngrams = NGramInput(spec, ctx, f"{prefix}ple.", parts, parts.ngrams[i])
        kind = spec.layers[i].mixer
        own = partial(GroupMixer, parts=parts) if kind == "attention" else MIXERS[kind]
        self._mixer = own(spec, ctx, i, rotaries)
        self._mlp = build_mlp(spec, ctx, i)

    def __call__(
        self, streams: Tensor, digits: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """Map streams to the next layer's, of tokens at keep; digits are those of all ids."""
        if self._ngrams is not None:
            streams = streams + self._ngrams(streams, digits, batch)
        taken, gates = self._around_mixer(streams)
        out = self._mixer(taken, batch, keep)
        if keep is not None:
            streams, gates = streams[keep], gates[keep]
        streams = _joined(streams, out, gates)
        taken, gates = self._around_mlp(streams)
        return _joined(streams, self._mlp(taken), gates)


def _joined(streams: Tensor, out: Tensor, gates: Tensor) -> Tensor:
    """Add out [n, size] to each of the streams by its gate [n, count]."""
    return streams + (out[:, None] * gates[..., None]).flatten(1)


class StreamNorm:
    """The RMS norm of each stream, with weights of its own, to which 1 is added."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, name: str, count: int) -> None:
        self._size = spec.hidden_size
        self._norm = RMSNorm(ctx, None, self._size, spec.norm_eps)
        self._weight = Vector(ctx, f"{name}.weight", count * self._size)

    def __call__(self, streams: Tensor) -> Tensor:
        """Map [n, count * size] to a new tensor of the same shape."""
        normed = self._norm(streams.reshape(-1, self._size))
        assert isinstance(normed, Tensor)
        normed = normed.view_as(streams)
        return torch.addcmul(normed, normed, self._weight.value)


class GatedStreams:
    """The input of a block: the mean of the normed streams, by a gate of each channel.

    Args:
        ends: No block follows, so that nothing joins the streams.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        prefix: str,
        parts: Qwen4Parts,
        ends: bool = False,
    ) -> None:
        self._count, self._size = parts.count, spec.hidden_size
        size = self._count * self._size

        def linear(name: str, rows: int, columns: int) -> Linear:
            # Only a checkpoint's own form: their results are factors of all that follows.
            stored = not ctx.format.online
            return Linear(ctx, Matrix(ctx, [(prefix + name, rows)], columns, quantize=stored))

        self._norm = StreamNorm(spec, ctx, f"{prefix}hc_norm", parts.count)
        self._down = linear("input_mix_weight_down", parts.rank, size)
        self._up = linear("input_mix_weight_up", size, parts.rank)
        self._join = None if ends else linear("block_inject_weight", parts.count, size)

    def __call__(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Return the block's input [n, size], and the gates [n, count] by which its output joins
        the streams [n, count * size]."""
        normed = self._norm(streams)
        mixed = torch.sigmoid(self._up(functional.silu(self._down(normed) / self._count)))
        taken = (mixed * normed).view(-1, self._count, self._size).mean(1)
        if self._join is None:
            return taken, taken
        return taken, 2.0 * torch.sigmoid(self._join(normed) / self._count)


class NGramInput:
    """The embedding of n-grams as a part of the streams: a value, by a gate of each stream, and a
    convolution over the values of the tokens before."""

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        prefix: str,
        parts: Qwen4Parts,
        ngrams: NGramSpec,
    ) -> None:
        size, count = spec.hidden_size, parts.count
        columns = (ngrams.size - 1) * ngrams.heads * ngrams.dim
        self._shape = (-1, count, size)
        self._embed = NGramEmbedding(ctx, ngrams, f"{prefix}ple_embedding.ngram_embedding")
        rows = [(f"{prefix}key_proj", count * size), (f"{prefix}value_proj", size)]
        self._project = Linear(ctx, Matrix(ctx, rows, columns))
        self._key, self._query, self._out = (
            StreamNorm(spec, ctx, f"{prefix}norm_{part}", count)
            for part in ("key", "query", "conv")
        )
        self._conv = SpreadConv(ctx, f"{prefix}conv1d", count * size, parts.taps, parts.apart)

    def __call__(self, streams: Tensor, digits: Tensor, batch: ForwardBatch) -> Tensor:
        """Return [num_tokens, count * size]."""
        made = self._project(self._embed(of_digits(digits), digits, batch))
        keys, value = made[:, : streams.shape[1]], made[:, streams.shape[1] :]
        product = self._key(keys) * self._query(streams)
        score = product.view(self._shape).sum(2, keepdim=True) * self._shape[2] ** -0.5
        gate = torch.sigmoid(score.abs().clamp_min(LEAST).sqrt() * score.sign())
        gated = (gate * value[:, None]).flatten(1)
        return gated + functional.silu(self._conv(self._out(gated), batch))


class SpreadConv(StateLayer[ShortConvSpec]):
    """A causal convolution of each channel over every so-manieth token, whole on each rank."""

    def __init__(self, ctx: BuildContext, name: str, size: int, taps: int, apart: int) -> None:
        self._apart, width = apart, (taps - 1) * apart + 1
        held = ctx.conv_state_dtype or ctx.dtype
        spec = ShortConvSpec(size, width, ctx.dtype, held, ctx.block_size, ctx.checkpoints)
        make = partial(ShortConvWeights, conv_bias=None)
        super().__init__(ctx, "short_conv", spec, None, make)
        self._ones = torch.ones(1, 2 * size, device=ctx.device, dtype=ctx.torch_dtype)
        tensor = (f"{name}.weight", (size, 1, taps), Split(((0, size),)))
        self.expect(ctx, "short_conv", {"conv": SmallWeight((tensor,), read=self._spread)})

    def _spread(self, weight: Tensor) -> Tensor:
        """Return [size, width] of [size, taps]."""
        wide = weight.new_zeros(len(weight), self.spec.conv_width)
        wide[:, :: self._apart] = weight
        return wide

    def __call__(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map [num_tokens, size] to the same shape."""
        return super().__call__(torch.cat((self._ones.expand(len(x), -1), x), 1), batch)


class GroupMixer:
    """Gated attention to groups of tokens that small heads choose; all ranks choose alike. See
    `hotshoe_models.mixers.Mixer`.

    Rotated channels of the indexer are the first ones, half beside half; slot `compress` has them
    last, pair by pair. So channels of q and of keys change places behind their norms.
    """

    input_quant = None

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: Mapping[Rotation, Rotary],
        parts: Qwen4Parts,
    ) -> None:
        rotation, prefix = spec.layers[i].rotation, spec.names.layer.format(i)
        assert rotation is not None
        name, dim, rope = f"{prefix}self_attn.indexer.", parts.head_dim, rotation.rotary_dim
        matrix, self._gates = qkv_matrix(spec, ctx, i)
        self._qkv, self._o = Linear(ctx, matrix), Linear(ctx, o_matrix(spec, ctx, i))
        rows = [(f"{name}index_qk_proj", (parts.heads + 1) * dim)]
        stored = not ctx.format.online  # a choice is worth more than what its matrix takes
        self._asks = Linear(ctx, Matrix(ctx, rows, spec.hidden_size, quantize=stored))
        self._norm = RMSNorm(ctx, f"{name}q_layernorm", dim, spec.norm_eps, spec.norm_offset)
        pairs = torch.arange(rope).view(2, -1).mT.flatten()
        self._order = torch.cat((torch.arange(rope, dim), pairs)).to(ctx.device)
        types = (ctx.dtype, ctx.kv_dtype)
        entry = CompressSpec(dim, rope, parts.group, False, spec.norm_eps, *types, ctx.block_size)
        asked = IndexerSpec(
            parts.heads, dim, rope, parts.top_k, *types, entry.per_block, interleaved=True
        )
        turned = replace(rotaries[rotation], interleaved=True)
        names = CompressorNames(None, f"{name}k_layernorm", self._weight)
        self._indexer = EntryIndexer(ctx, asked, entry, turned, names)
        self._attention = GroupAttention(
            ctx,
            attention_spec(spec, ctx, i),
            self._indexer,
            rotaries[rotation],
            qk_norm_of(spec, i),
            stored_kv_scales(ctx.format, (prefix + spec.names.o).rpartition(".")[0]),
        )
        self._dim, self._offset = dim, spec.norm_offset
        self._weights = torch.ones(1, parts.heads, device=ctx.device)

    def _weight(self, weight: Tensor) -> Tensor:
        """Return the weight of a key's norm as slot `compress` has it."""
        return weight.float()[self._order.to(weight.device)] + self._offset

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `hotshoe_models.mixers.Mixer`."""
        assert isinstance(hidden, Tensor)
        made = self._asks(hidden)
        q, key = made[:, : -self._dim], made[:, -self._dim :]
        normed = self._norm(q.reshape(-1, self._dim))
        assert isinstance(normed, Tensor)
        key = key[:, self._order]
        self._indexer.compressor.write(torch.cat((key, torch.zeros_like(key)), 1), batch)
        weights = self._weights.expand(len(hidden), -1).contiguous()
        asked = self._indexer.ask(normed[:, self._order].view_as(q), weights, batch)
        qkv = self._qkv(hidden)
        gates, qkv = qkv[:, : self._gates], qkv[:, self._gates :].contiguous()
        out = self._attention(qkv, asked, batch) * torch.sigmoid(gates)
        return self._o(out if keep is None else out[keep])
