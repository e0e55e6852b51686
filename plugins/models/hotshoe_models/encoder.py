"""The one encoder: tokens that attend to all tokens of their text, built from an `EncoderSpec`.

It has no cache, so a step has all tokens of every request in it. A forward pass is a loop over
layers of bound calls. Families are in modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers import (
    BuildContext,
    Embedding,
    ForwardBatch,
    GatedMLP,
    LayerNorm,
    Linear,
    Matrix,
    Mixture,
    MoE,
    PlainMLP,
    RMSNorm,
    Rotary,
    Rotation,
    Section,
)
from hotshoe.models.base import CLASSIFY, EMBED, TOKEN_CLASSIFY, TOKEN_EMBED
from hotshoe.slots import PackedAttentionOp, PackedAttentionSpec
from hotshoe.types.pooling import PoolingKind
from hotshoe_models.encoder_spec import EncoderLayer, EncoderSpec
from hotshoe_models.mlps import parts_of
from hotshoe_models.per_layer import Vector
from hotshoe_models.relative import RelativeAttention

#: Maps [num_tokens, hidden_size] to the same shape.
Norm: TypeAlias = "Callable[[Tensor], Tensor]"


class Encoder:
    """See `hotshoe.models.base.Model`.

    Args:
        spec: The architecture.
        ctx: The build context.

    Attributes:
        classify: Makes logits of classes, of texts or tokens; None where there are none. Builders
            set it, as well as `class_pooling`, which state of a text it takes.
        words: The tensor of the words' embeddings.
    """

    classify: Callable[[Tensor], Tensor] | None = None
    class_pooling: PoolingKind = "cls"

    def __init__(self, spec: EncoderSpec, ctx: BuildContext) -> None:
        names, size = spec.names, spec.hidden_size
        if spec.head_dim is None and spec.hidden_size % spec.num_heads:
            raise CheckpointError(
                f"config.json: a hidden size of {size} does not divide among {spec.num_heads} heads"
            )
        self.vocab_size, self.hidden_size = spec.vocab_size, size
        self.words = f"{names.words}.weight"
        self.tasks = frozenset({EMBED, TOKEN_EMBED})
        self._embed = Embedding(ctx, names.words, spec.vocab_size, size)
        self._positions, self._offset = _positions(spec, ctx), spec.position_offset
        self._types = Embedding(ctx, names.types, spec.num_types, size) if names.types else None
        # Models of late interaction read texts one by one, whose last separator masks may follow.
        single = spec.num_types < 2 or ctx.late is not None
        self._separator = None if single else spec.separator
        self._unseen = None if ctx.late is None else ctx.late.unseen
        self._embedding_norm = _optional_norm(spec, ctx, names.embedding_norm)
        self._attention: _Attention | RelativeAttention
        if spec.relative is None:
            self._attention = _Attention(spec, ctx)
        else:
            self._attention = RelativeAttention(spec, spec.relative, ctx)
        self._layers = [_Layer(spec, ctx, i, self._attention) for i in range(len(spec.layers))]
        self._final_norm = _optional_norm(spec, ctx, names.final_norm)
        ctx.weights.ignore(names.unused)
        if names.prefixes:
            ctx.weights.rename(rf"^{names.prefixes}", "")

    def embed(self, ids: Tensor) -> Tensor:
        """Return [num_tokens, hidden_size] for ids [num_tokens] int32; behind it, where tokens have
        types, a column that is 1 where a separator is, and one of tokens that may not be seen."""
        words = self._embed(ids)
        marks = [ids == one for one in (self._separator, self._unseen) if one is not None]
        if not marks:
            return words
        return torch.cat((words, torch.stack(marks, 1).to(words.dtype)), 1)

    def scale_embeddings(self, rows: Tensor) -> Tensor:
        """Return rows [n, hidden_size] as they are."""
        return rows

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """Return the final hidden states of the tokens at `batch.outputs_at` (of all, if None)."""
        positions = batch.positions
        words, marks = hidden[:, : self.hidden_size], hidden[:, self.hidden_size :]
        if self._types is not None:
            types = torch.zeros_like(positions)
            if self._separator is not None:
                types = token_types(marks[:, 0], positions)
            words = words + self._types(types)
        if self._positions is not None:
            at = positions + self._offset if self._offset else positions
            words = words + self._positions(at)
        hidden = words.contiguous()
        if self._embedding_norm is not None:
            hidden = self._embedding_norm(hidden)
        attend = self._attention.over(batch, self._seen(marks, batch))
        for layer in self._layers:
            hidden = layer(hidden, attend)
        if batch.outputs_at is not None:
            hidden = hidden[batch.outputs_at]
        return hidden if self._final_norm is None else self._final_norm(hidden)

    def _seen(self, marks: Tensor, batch: ForwardBatch) -> Tensor | None:
        """Return how many leading tokens of each request are seen; None for all."""
        if self._unseen is None:
            return None
        return num_seen(marks[:, -1], batch.positions, batch.shape.query_start_loc)

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """Return the hidden states themselves, or [n, classes] float32."""
        if task in (CLASSIFY, TOKEN_CLASSIFY):
            assert self.classify is not None, "a task of models with classes"
            return self.classify(hidden)
        return hidden.float()


def token_types(separators: Tensor, positions: Tensor) -> Tensor:
    """Return [num_tokens] int32, 1 for each token behind the first separator of its request.

    Args:
        separators: [num_tokens], 1 where a separator is, else 0.
        positions: [num_tokens] int32, from 0 in each request.
    """
    marked = separators.to(torch.int32)
    before = marked.cumsum(0, dtype=torch.int32) - marked
    numbers = torch.arange(len(marked), dtype=torch.int32, device=marked.device)
    return (before > before[(numbers - positions).long()]).to(torch.int32)


def num_seen(unseen: Tensor, positions: Tensor, starts: Tensor) -> Tensor:
    """Return [num_reqs] int32, tokens of each request but a run of unseen ones at its end.

    Args:
        unseen: [num_tokens], 1 for each token that is not seen in such a run, else 0.
        positions: [num_tokens] int32, from 0 in each request.
        starts: [num_reqs + 1] int32, where requests begin.
    """
    numbers = torch.arange(len(positions), dtype=torch.int32, device=positions.device)
    request = torch.bucketize(numbers, starts[1:], right=True).clamp_(max=len(starts) - 2)
    ends = torch.where(unseen > 0, 0, positions + 1)
    return ends.new_zeros(len(starts) - 1).scatter_reduce_(0, request, ends, "amax")


#: What a layer asks for, and the table of its rotation.
Asked: TypeAlias = tuple[PackedAttentionSpec, Tensor | None]


class _Attention:
    """The operations of all layers: one for each window and rotation."""

    def __init__(self, spec: EncoderSpec, ctx: BuildContext) -> None:
        heads = ctx.split("attention heads", Section(spec.num_heads)).size
        dim, self._bias = spec.channels, None
        common = (heads, heads, dim, ctx.dtype, spec.scale or dim**-0.5)
        self._ops: dict[PackedAttentionSpec, PackedAttentionOp] = {}
        self._tables: dict[Rotation, Tensor] = {}
        limited = ctx.late is not None and ctx.late.unseen is not None
        self._plain, self._ctx = PackedAttentionSpec(*common, limited=limited), ctx
        if spec.bias is not None:
            self._bias = spec.bias.table(ctx, spec.num_heads)
            self._plain = replace(self._plain, bias_span=self._bias.span)

    def add(self, layer: EncoderLayer) -> Asked:
        """Return what a layer asks for, and the table of its rotation."""
        rotation, ctx, table = layer.rotation, self._ctx, None
        window = layer.window
        if window is not None and window >= ctx.max_model_len - 1:
            window = None
        wanted = replace(self._plain, window=window)
        if rotation is not None:
            wanted = replace(wanted, rotary_dim=rotation.rotary_dim)
            if rotation not in self._tables:
                memory = ctx.selector.facts.memory_bytes
                built = Rotary.build(rotation, ctx.max_model_len, ctx.device, memory)
                self._tables[rotation] = built.table
            table = self._tables[rotation]
        if wanted not in self._ops:
            self._ops[wanted] = ctx.selector.choose("packed_attention", wanted)
        return wanted, table

    def over(self, batch: ForwardBatch, num_keys: Tensor | None) -> _Attend:
        """Plan a step, once for all layers."""
        plans = {spec: (op, op.prepare(batch.shape, num_keys)) for spec, op in self._ops.items()}
        bias = None if self._bias is None else self._bias.values
        return _Attend(plans, batch.positions, bias)


@dataclass(frozen=True, slots=True)
class _Attend:
    """The attention of one step."""

    plans: Mapping[PackedAttentionSpec, tuple[PackedAttentionOp, Any]]
    positions: Tensor
    bias: Tensor | None

    def __call__(self, asked: Asked, project: Callable[[Tensor], Tensor], taken: Tensor) -> Tensor:
        spec, table = asked
        op, plan = self.plans[spec]
        return op(project(taken), self.positions, table, plan, self.bias)


class _Layer:
    """Attention and MLP, each with its norm before or behind it."""

    def __init__(
        self,
        spec: EncoderSpec,
        ctx: BuildContext,
        i: int,
        attention: _Attention | RelativeAttention,
    ) -> None:
        names, prefix, size = spec.names, spec.names.layer.format(i), spec.hidden_size
        heads = Section(spec.num_heads, spec.channels)
        width = heads.units * heads.width
        what, bias = "attention heads", spec.attention_bias
        outputs = ctx.split(what, heads, heads, heads)
        parts = parts_of(prefix, names.qkv, [width] * 3)
        self._qkv = Linear(ctx, Matrix(ctx, parts, size, bias=bias, outputs=outputs))
        rows = [(prefix + names.o, size)]
        self._o = Linear(ctx, Matrix(ctx, rows, width, bias=bias, inputs=ctx.split(what, heads)))
        mixture = spec.layers[i].mixture
        self._mlp: Callable[[Tensor], Tensor]
        if mixture is None:
            self._mlp = _mlp(spec, ctx, prefix)
        else:
            self._mlp = _Experts(spec, ctx, prefix, mixture)
        normed = spec.layers[i].normed or not spec.norms_first
        self._attention_norm = _norm(spec, ctx, prefix + names.attention_norm) if normed else None
        self._mlp_norm = _norm(spec, ctx, prefix + names.mlp_norm)
        self._first, self._asked = spec.norms_first, attention.add(spec.layers[i])

    def __call__(self, hidden: Tensor, attend: Any) -> Tensor:
        """Map [num_tokens, hidden_size] to the next layer's."""
        norm, taken = self._attention_norm, hidden
        if self._first and norm is not None:
            taken = norm(hidden)
        hidden = hidden + self._o(attend(self._asked, self._qkv, taken))
        if self._first:
            return hidden + self._mlp(self._mlp_norm(hidden))
        assert norm is not None
        hidden = norm(hidden)
        return self._mlp_norm(hidden + self._mlp(hidden))


def _mlp(spec: EncoderSpec, ctx: BuildContext, prefix: str) -> GatedMLP | PlainMLP:
    names, size, width = spec.names, spec.hidden_size, spec.intermediate_size
    what, channels, inner = "channels between MLP matrices", Section(width), 1 + spec.gated
    parts, bias = parts_of(prefix, names.up, [width] * inner), spec.mlp_bias
    outputs = ctx.split(what, *[channels] * inner)
    if spec.gates_last:
        outputs = replace(outputs, ranges=outputs.ranges[::-1])
    up = Matrix(ctx, parts, size, bias=bias and spec.up_bias, outputs=outputs)
    inputs = ctx.split(what, channels)
    down = Matrix(ctx, [(prefix + names.down, size)], width, bias=bias, inputs=inputs)
    return (GatedMLP if spec.gated else PlainMLP)(ctx, up, down, spec.activation)


class _Experts:
    """Experts, and what is added to their sum."""

    def __init__(self, spec: EncoderSpec, ctx: BuildContext, prefix: str, mixture: Mixture) -> None:
        self._experts, bias = MoE(ctx, prefix, mixture), spec.names.experts_bias
        self._bias = None if bias is None else Vector(ctx, prefix + bias, spec.hidden_size)

    def __call__(self, x: Tensor) -> Tensor:
        out = self._experts(x)
        return out if self._bias is None else out.add_(self._bias.value)


def _norm(spec: EncoderSpec, ctx: BuildContext, name: str) -> Norm:
    if spec.rms:
        return cast(Norm, RMSNorm(ctx, name, spec.hidden_size, spec.norm_eps))
    return LayerNorm(ctx, name, spec.hidden_size, spec.norm_eps, bias=spec.norm_bias)


def _optional_norm(spec: EncoderSpec, ctx: BuildContext, name: str | None) -> Norm | None:
    return None if name is None else _norm(spec, ctx, name)


def _positions(spec: EncoderSpec, ctx: BuildContext) -> Embedding | None:
    """Build the gather of positions' vectors, where the model has them.

    Raises:
        ConfigError: Texts may be longer than there are positions.
    """
    if spec.names.positions is None:
        return None
    count = spec.num_positions - spec.position_offset
    if ctx.max_model_len > count:
        raise ConfigError(
            f"max_model_len {ctx.max_model_len} exceeds the {count} positions that the model has "
            "vectors for; lower --max-model-len"
        )
    return Embedding(ctx, spec.names.positions, spec.num_positions, spec.hidden_size)
