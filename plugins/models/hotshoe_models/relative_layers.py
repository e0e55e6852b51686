"""Layers of Inkling: attention with logits of relative positions, and short convolutions of keys,
of values, and of what attention and experts put out.

A convolution adds what it makes to what it is made of. What it sees are the last inputs of each
sequence, which are states. So a layer computes all tokens to its end, whichever go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    ForwardBatch,
    Linear,
    LogTemperature,
    Matrix,
    RelativeAttention,
    Rotary,
    Rotation,
    Section,
    Split,
    stored_kv_scales,
)
from hotshoe.layers.states import SmallWeight, StateLayer
from hotshoe.models.base import GENERATE
from hotshoe.slots import ShortConvSpec, ShortConvWeights
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mlps import build_mlp
from hotshoe_models.per_layer import Vector, norm
from hotshoe_models.projections import attention_spec, o_matrix, qk_norm_of
from hotshoe_models.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeParts:
    """The values that a `DecoderSpec` lacks.

    Attributes:
        states: Channels of the state that a head's logits are made of.
        extent: Distances that have logits, in layers without windows; else the window.
        taps: Tokens that a convolution sees, itself included.
        temperature: Of layers without windows; None for none.
        kept: Tokens of the vocabulary; further rows of the tables stand for none. None for all.
    """

    states: int
    extent: int
    taps: int
    temperature: LogTemperature | None
    kept: int | None


class RelativeDecoder(DenseDecoder):
    """See `DenseDecoder`."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, parts: RelativeParts) -> None:
        self._parts = parts
        super().__init__(spec, ctx)
        self.vocab_size = parts.kept or spec.vocab_size
        self._norm = norm(spec, ctx, spec.names.final_norm) if ctx.stage.is_last else None

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        built = [RelativeLayer(spec.sized(i), ctx, i, self._parts) for i in own]
        self.layers: list[RelativeLayer] = built

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """See `hotshoe.models.base.Model`."""
        if self._embedding_norm is not None:
            hidden = self._embedding_norm(hidden)
        for layer in self.layers:
            hidden = layer(hidden, batch)
        if batch.outputs_at is not None:
            hidden = hidden[batch.outputs_at]
        return hidden if self._norm is None else self._norm(hidden)

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """See `hotshoe.models.base.Model`; logits of rows that fill the table up are left out."""
        logits = super().head(hidden, task)
        if task != GENERATE or self._parts.kept is None:
            return logits
        return logits[:, : self._parts.kept].contiguous()


class RelativeLayer:
    """Attention, then an MLP or experts; a convolution follows each, and then the residual."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, parts: RelativeParts) -> None:
        names, prefix, size = spec.names, spec.names.layer.format(i), spec.hidden_size
        self._input_norm = norm(spec, ctx, f"{prefix}{names.input_norm}")
        self._mixer = RelativeMixer(spec, ctx, i, parts)
        whole = Split(((0, size),))
        convolution = partial(Convolution, ctx, taps=parts.taps)
        self._after_mixer = convolution([(f"{prefix}attn_sconv", size, whole)])
        self._mlp_norm = norm(spec, ctx, f"{prefix}{names.mlp_norm}")
        self._mlp = build_mlp(spec, ctx, i)
        gate = "mlp.gate." if spec.layers[i].mixture is not None else "mlp."
        self._factor = Vector(ctx, f"{prefix}{gate}global_scale", 1)
        self._after_mlp = convolution([(f"{prefix}mlp_sconv", size, whole)])

    def __call__(self, residual: Tensor, batch: ForwardBatch) -> Tensor:
        """Map the residual [num_tokens, hidden_size] to the next layer's."""
        out = self._mixer(self._input_norm(residual), batch)
        residual = residual + self._after_mixer(out, batch)
        out = self._mlp(self._mlp_norm(residual)) * self._factor.value
        return residual + self._after_mlp(out, batch)


class RelativeMixer:
    """Attention of this rank's heads, each of which has a state for its logits."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, parts: RelativeParts) -> None:
        layer, prefix, dim = spec.layers[i], spec.names.layer.format(i), spec.head_dim
        name = f"{prefix}self_attn."
        heads, kv = Section(spec.num_heads, dim), Section(spec.num_kv_heads, dim, shared=True)
        states = Section(spec.num_heads, parts.states)
        what, rows = "attention heads", (states, heads, kv, kv)
        named = zip(("r_proj", "q_proj", "k_proj", "v_proj"), rows, strict=True)
        self._in = Linear(
            ctx,
            Matrix(
                ctx,
                [(name + part, section.units * section.width) for part, section in named],
                spec.hidden_size,
                quantize=spec.quantizes("qkv", ctx.format),
                outputs=ctx.split(what, *rows),
            ),
        )
        own = ctx.split(what, kv)
        stored = [(f"{name}{side}_sconv", kv.units * dim, own) for side in "kv"]
        self._conv = Convolution(ctx, stored, parts.taps)
        self._widths = [ctx.split(what, states).size, ctx.split(what, heads).size, 2 * own.size]
        spec = replace(spec, attention_scale=1 / dim)  # q and k are normed
        qk_norm = qk_norm_of(spec, i)
        assert qk_norm is not None
        self._attention = RelativeAttention(
            ctx,
            attention_spec(spec, ctx, i),
            (parts.states, layer.window or parts.extent),
            f"{name}rel_logits_proj.proj",
            qk_norm,
            stored_kv_scales(ctx.format, name[:-1]),
            None if layer.window else parts.temperature,
        )
        self._o = Linear(ctx, o_matrix(spec, ctx, i))

    def __call__(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """Map normed [num_tokens, hidden_size] to as many."""
        states, q, kv = self._in(hidden).split(self._widths, 1)
        qkv = torch.cat((q, self._conv(kv, batch)), 1)
        return self._o(self._attention.attend(qkv, states, batch))


class Convolution:
    """x, and to it a causal convolution of each channel, by slot `short_conv` with gates of 1.

    Args:
        ctx: The build context, where its states are registered.
        stored: Checkpoint prefix of each convolution, its channels, and this rank's part of them.
        taps: Tokens that it sees.
    """

    def __init__(
        self, ctx: BuildContext, stored: Sequence[tuple[str, int, Split]], taps: int
    ) -> None:
        size = sum(own.size for _, _, own in stored)
        held = ctx.conv_state_dtype or ctx.dtype
        spec = ShortConvSpec(size, taps, ctx.dtype, held, ctx.block_size, ctx.checkpoints)
        self._states: StateLayer[ShortConvSpec] = StateLayer(
            ctx, "short_conv", spec, None, partial(ShortConvWeights, conv_bias=None)
        )
        self._gates = torch.ones(1, 2 * size, device=ctx.device, dtype=ctx.torch_dtype)
        tensors = tuple((f"{name}.conv1d.weight", (n, 1, taps), own) for name, n, own in stored)
        self._states.expect(ctx, "short_conv", {"conv": SmallWeight(tensors)})

    def __call__(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Return a new [num_tokens, channels]."""
        gated = torch.cat((self._gates.expand(len(x), -1), x), 1)
        return self._states(gated, batch) + x
