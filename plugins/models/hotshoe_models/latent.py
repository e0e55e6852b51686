"""The mixer of latent attention: projections to q and to latents, attention, output projection.

Knows no family; sizes are in a `LatentSpec`, names are those that all families share.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.layers import (
    Asked,
    BuildContext,
    Chooser,
    ForwardBatch,
    GroupIndexer,
    HeadTemperature,
    Indexer,
    LatentAttention,
    LatentNames,
    LayerNorm,
    Linear,
    Matrix,
    RMSNorm,
    Rotary,
    Rotation,
    Section,
)
from hotshoe.layers.split import Split
from hotshoe.slots import CompressSpec, IndexerSpec, MlaAttentionSpec, Quantized
from hotshoe_models.spec import DecoderSpec, IndexSpec, LatentSpec

WHAT = "attention heads"
#: How the names of weights begin that make one key of those of a group.
GATES = "index_kpool_compress"


class LatentMixer:
    """See `hotshoe_models.mixers.Mixer`. Ranks share the latents, and divide the heads.

    Args:
        source: Attention of a layer before, whose latents are read; None for its own.

    Attributes:
        attention: Between the projections.
        shares: It reads the tokens that a layer before has chosen.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: Mapping[Rotation, Rotary],
        source: LatentAttention | None = None,
    ) -> None:
        latent, rotation = spec.latent, spec.layers[i].rotation
        assert latent is not None and rotation is not None
        prefix = f"{spec.names.layer.format(i)}{latent.name}."
        self._q = _Queries(spec, ctx, latent, prefix)
        self._rows = _rows(spec, ctx, latent, prefix) if source is None else None
        self._grow: HeadTemperature | None = None
        if latent.temperature is not None:
            name = prefix + latent.temperature
            self._grow = HeadTemperature(ctx, name, spec.num_heads, divided=True)
        self._latent_dim, self._rope_norm = latent.latent_dim, None
        if latent.rope_norm is not None:
            name = prefix + latent.rope_norm
            self._rope_norm = RMSNorm(ctx, name, latent.rope_dim, latent.norm_eps)
        self._gates = None if latent.gate is None else _gates(spec, ctx, latent, prefix)
        self._temperature = spec.layers[i].temperature
        rotary, mixer = rotaries[rotation], spec.layers[i].mixer
        self._index = _Index(spec, ctx, latent, rotary, prefix) if mixer == "indexed" else None
        self.shares = mixer == "shared"
        seen: Chooser | int | None = spec.layers[i].window
        if mixer != "latent":
            seen = _last_indexer(ctx, i) if self._index is None else self._index.chooser
        self.attention = _attention(spec, ctx, latent, rotary, prefix, seen, source)
        self.attention.up_scale = latent.up_scale
        self._o = Linear(
            ctx,
            Matrix(
                ctx,
                [(prefix + "o_proj", spec.hidden_size)],
                spec.num_heads * latent.v_dim,
                bias=spec.o_bias,
                quantize=spec.quantizes("o", ctx.format),
                inputs=ctx.split(WHAT, Section(spec.num_heads, latent.v_dim)),
            ),
        )
        taking = (self._q, self._rows, self._gates)
        quants = {part.input_quant for part in taking if part is not None}
        self.input_quant = quants.pop() if len(quants) == 1 and self._index is None else None

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        q, latents, gates = self._q(hidden)
        if self._temperature is not None:
            q.mul_(self._temperature.of(batch.positions))
        if self._grow is not None:
            q = self._grow(q, batch.positions)
        asked = None
        if self._index is not None:
            assert isinstance(hidden, Tensor) and isinstance(latents, Tensor)
            asked = self._index(hidden, latents, batch)
        rows = None if self._rows is None else self._rows(hidden)
        if rows is not None and self._rope_norm is not None:
            turned = rows[:, self._latent_dim :]
            turned.copy_(self._rope_norm(turned.contiguous()))
        out = self.attention(q, rows, batch, asked)
        if self._gates is not None:
            gates = self._gates(hidden)
        if gates is not None:
            gates = torch.sigmoid(gates.float()).to(out.dtype)
            out = (out.view(*gates.shape, -1) * gates[..., None]).view_as(out)
        return self._o(out if keep is None else out[keep])


def _rows(spec: DecoderSpec, ctx: BuildContext, latent: LatentSpec, prefix: str) -> Linear:
    """Build the matrix that makes a token's latents and its key that is rotated."""
    rows = [(f"{prefix}kv_a_proj_with_mqa", latent.latent_dim + latent.rope_dim)]
    quantize = spec.quantizes("qkv", ctx.format)
    return Linear(ctx, Matrix(ctx, rows, spec.hidden_size, bias=latent.bias, quantize=quantize))


def _gates(spec: DecoderSpec, ctx: BuildContext, latent: LatentSpec, prefix: str) -> Linear:
    """Build the matrix that makes a gate for each of this rank's heads, or of their channels."""
    width = latent.v_dim if latent.channel_gates else 1
    heads = ctx.split(WHAT, Section(spec.num_heads, width))
    quantize = spec.quantizes("qkv", ctx.format)
    rows = [(f"{prefix}{latent.gate}", spec.num_heads * width)]
    return Linear(ctx, Matrix(ctx, rows, spec.hidden_size, quantize=quantize, outputs=heads))


class _Queries:
    """q of the hidden states: one matrix, or two with a norm between."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, latent: LatentSpec, prefix: str
    ) -> None:
        self._width = latent.nope_dim + latent.rope_dim
        width = self._width + (latent.v_dim if latent.gated else 0)
        heads = ctx.split(WHAT, Section(spec.num_heads, width))
        quantize = spec.quantizes("qkv", ctx.format)

        def linear(name: str, rows: int, columns: int, bias: bool, outputs: Split | None) -> Linear:
            parts = [(prefix + name, rows)]
            return Linear(
                ctx, Matrix(ctx, parts, columns, bias=bias, quantize=quantize, outputs=outputs)
            )

        size, total = spec.hidden_size, spec.num_heads * width
        self._norm: RMSNorm | None = None
        if latent.q_dim is None:
            self._first = linear("q_proj", total, size, False, heads)
        else:
            self._first = linear("q_a_proj", latent.q_dim, size, latent.bias, None)
            taken = latent.q_dim * (1 + latent.gated)
            self._second = linear("q_b_proj", total, taken, False, heads)
            plain = latent.index is not None or latent.gated
            quant = None if plain else self._second.input_quant
            name = prefix + "q_a_layernorm"
            self._norm = RMSNorm(ctx, name, latent.q_dim, latent.norm_eps, quant=quant)
        self._gated, self._heads = latent.gated, heads.size // width
        self.input_quant = self._first.input_quant

    def __call__(
        self, hidden: Tensor | Quantized
    ) -> tuple[Tensor, Tensor | Quantized, Tensor | None]:
        """Return [num_tokens, num_heads * (nope_dim + rope_dim)], this rank's heads, what they were
        made of, normed latents or the hidden states, and gates [num_tokens, num_heads * v_dim]."""
        first = self._first(hidden)
        if self._norm is None:
            return first, hidden, None
        latents = self._norm(first)
        if not self._gated:
            return self._second(latents), latents, None
        assert isinstance(latents, Tensor)
        made = self._second(torch.cat((latents, first), 1)).view(len(first), self._heads, -1)
        return made[..., : self._width].flatten(1), latents, made[..., self._width :].flatten(1)


class _Index:
    """What an indexer chooses by: heads of the latents that q is made of or of the hidden states, a
    key and weights of these. All ranks have all of it."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, latent: LatentSpec, rotary: Rotary, prefix: str
    ) -> None:
        index, size = latent.index, spec.hidden_size
        assert index is not None
        self._input_norm: LayerNorm | None = None
        taken = latent.q_dim
        if index.input_norm is not None:
            taken, name = size, f"{prefix}indexer.{index.input_norm}"
            self._input_norm = LayerNorm(ctx, name, size, index.norm_eps)
        assert taken is not None
        # Only a checkpoint's own form: a choice is worth more than what its matrices take.
        stored = not ctx.format.online

        def matrix(name: str, rows: int, columns: int, quantize: bool) -> Matrix:
            return Matrix(ctx, [(f"{prefix}indexer.{name}", rows)], columns, quantize=quantize)

        heads, head_dim = index.num_heads, index.head_dim
        self._shape, self._last = (-1, heads, head_dim), rotary.rotary_dim if index.last else 0
        self.chooser = _chooser(ctx, index, rotary, f"{prefix}indexer.{GATES}_ape")
        self._gate: Linear | None = None
        if index.group is not None:
            self._gate = Linear(ctx, matrix(f"{GATES}_gate", head_dim, size, False))
        self._q = Linear(ctx, matrix("wq_b", heads * head_dim, taken, stored))
        self._grow: HeadTemperature | None = None
        if index.temperature is not None:
            name = f"{prefix}indexer.{index.temperature}"
            self._grow = HeadTemperature(ctx, name, heads, divided=False)
        self._key = Linear(ctx, matrix("wk", head_dim, size, stored))
        self._norm = LayerNorm(ctx, f"{prefix}indexer.k_norm", head_dim, index.norm_eps)
        self._weights = Linear(ctx, matrix("weights_proj", heads, size, False), "float32")

    def __call__(self, hidden: Tensor, latents: Tensor, batch: ForwardBatch) -> Asked:
        """Write the step's keys, and return what its tokens are chosen by."""
        key = self._norm(self._key(hidden))
        if self._gate is not None:
            assert isinstance(key, Tensor)
            key = torch.cat((key, self._gate(hidden)), 1)
        q = self._q(latents if self._input_norm is None else self._input_norm(hidden))
        if self._grow is not None:
            q = self._grow(q, batch.positions)
        if self._last:  # products are the same whatever the order of channels
            q = q.view(self._shape).roll(self._last, -1).flatten(1)
            assert isinstance(key, Tensor)
            key = key.roll(self._last, -1)
        return self.chooser.write(q, key, self._weights(hidden), batch)


def _chooser(ctx: BuildContext, index: IndexSpec, rotary: Rotary, bias: str) -> Chooser:
    """Build what chooses by an indexer's heads.

    Args:
        bias: Of the gates by which keys of a group are added.
    """
    sizes, types = (index.num_heads, index.head_dim, rotary.rotary_dim), (ctx.dtype, ctx.kv_dtype)
    if index.group is None:
        spec = IndexerSpec(*sizes, index.top_k, *types, ctx.block_size, index.interleaved)
        return Indexer(ctx, spec, rotary)
    made = CompressSpec(*sizes[1:], index.group, False, None, *types, ctx.block_size)
    spec = IndexerSpec(*sizes, index.top_k // index.group, *types, made.per_block, True)
    return GroupIndexer(ctx, spec, made, rotary, bias)


def _last_indexer(ctx: BuildContext, i: int) -> Indexer:
    """Return the indexer of this layer, or of the last one before it that has one.

    Raises:
        ConfigError: Another stage has it.
    """
    found = [layer for layer in ctx.cache_layers if isinstance(layer, Indexer)]
    if not found:
        raise ConfigError(
            f"layers[{i}] attends to the tokens that an earlier layer has chosen, which another "
            "stage has; use --pipeline-parallel-size 1, or let a stage begin with a layer that "
            "has an indexer (--pipeline-layers)"
        )
    return found[-1]


def _attention(
    spec: DecoderSpec,
    ctx: BuildContext,
    latent: LatentSpec,
    rotary: Rotary,
    prefix: str,
    seen: Chooser | int | None,
    source: LatentAttention | None,
) -> LatentAttention:
    return LatentAttention(
        ctx,
        MlaAttentionSpec(
            spec.num_heads,
            latent.latent_dim,
            latent.nope_dim,
            latent.rope_dim,
            latent.v_dim,
            ctx.dtype,
            ctx.kv_dtype,
            ctx.block_size,
            spec.attention_scale if latent.scale is None else latent.scale,
        ),
        rotary,
        LatentNames(
            f"{prefix}kv_b_proj",
            f"{prefix}kv_a_layernorm" if source is None else source,
            None if latent.sinks is None else prefix + latent.sinks,
        ),
        latent.norm_eps,
        seen,
    )
