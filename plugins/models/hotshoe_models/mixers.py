"""Mixers: the part of a layer that looks at other tokens, by the name that a `LayerSpec` gives it.

A mixer is all that lies between the norm before it and the residual addition behind it: both of
its projections, and what is between them. It asks slots for every operation and knows no family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from hotshoe.layers import (
    Attention,
    BuildContext,
    DividedRMSNorm,
    ForwardBatch,
    Linear,
    Matrix,
    QkNorm,
    Rotary,
    Rotation,
    Section,
    StateSpace,
    stored_kv_scales,
)
from hotshoe.slots import Quantized, QuantSpec
from hotshoe_models.delta import DeltaMixer
from hotshoe_models.head_rows import ungrouped, with_gates
from hotshoe_models.latent import LatentMixer
from hotshoe_models.mlps import build_mlp, parts_of
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.value_heads import Values

Rotaries: TypeAlias = Mapping[Rotation, Rotary]


class Mixer(Protocol):
    """One layer's mixer.

    Attributes:
        input_quant: How the norm before it may quantize what it hands over; None for not at all.
    """

    input_quant: QuantSpec | None

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """Map normed [num_tokens, hidden_size] to the output of the tokens at `keep` (None: all),
        [s, hidden_size]. The cache is written for every token."""
        ...


class AttentionMixer:
    """Attention of q, k and v projections over the cache of keys and values."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        names, size = spec.names, spec.hidden_size
        prefix = names.layer.format(i)
        kv_parts = 1 if spec.layers[i].keys_as_values else 2
        kv_dims = (spec.head_dim, spec.value_dim)[:kv_parts]
        rows = [spec.num_heads * spec.head_dim, *(spec.num_kv_heads * dim for dim in kv_dims)]
        heads = Section(spec.num_heads, spec.head_dim)
        kv_heads = [Section(spec.num_kv_heads, dim, shared=True) for dim in kv_dims]
        outputs = ctx.split("attention heads", heads, *kv_heads)
        self._gates, parts = 0, names.qkv[: len(rows)]
        if spec.gated_attention and names.gate is None:
            outputs, self._gates = with_gates(outputs, spec)
            rows[0] *= 2
        elif spec.gated_attention:
            outputs = ctx.split("attention heads", heads, heads, *kv_heads)
            self._gates = ctx.split("attention heads", heads).size
            rows, parts = [rows[0], *rows], (names.gate, *parts)
        self._qkv = Linear(
            ctx,
            Matrix(
                ctx,
                parts_of(prefix, parts, rows),
                spec.layers[i].qkv_inputs or size,
                bias=spec.qkv_bias,
                quantize=spec.quantizes("qkv", ctx.format),
                outputs=ungrouped(outputs, spec) if names.grouped_qkv else outputs,
                transposed=spec.transposed,
            ),
        )
        self._norms = _WideNorms(spec, ctx, prefix) if names.wide_qk_norm else None
        changed = spec.value_norm or spec.value_scale != 1.0 or kv_parts == 1
        self._values = Values(spec, ctx, i) if changed else None
        self.attention = _attention(spec, ctx, i, rotaries)
        self._temperature = spec.layers[i].temperature
        self._q_width = self.attention.spec.num_heads * spec.head_dim
        self._o = Linear(
            ctx,
            Matrix(
                ctx,
                [(prefix + names.o, size)],
                spec.num_heads * spec.value_dim,
                bias=spec.o_bias,
                quantize=spec.quantizes("o", ctx.format),
                inputs=ctx.split("attention heads", Section(spec.num_heads, spec.value_dim)),
                transposed=spec.transposed,
            ),
        )
        self.input_quant = self._qkv.input_quant

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        qkv, gates = self._qkv(hidden), None
        if self._gates:
            gates, qkv = qkv[:, : self._gates], qkv[:, self._gates :].contiguous()
        if self._norms is not None:
            self._norms(qkv)
        if self._temperature is not None:
            qkv[:, : self._q_width].mul_(self._temperature.of(batch.positions))
        if self._values is not None:
            qkv = self._values(qkv)
        out = self.attention(qkv, batch)
        if gates is not None:
            out = out * torch.sigmoid(gates)
        return self._o(out if keep is None else out[keep])


def _attention(spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> Attention:
    layer, names = spec.layers[i], spec.names
    prefix = names.layer.format(i)
    plain = ctx.attention_spec(
        spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.attention_scale
    )
    return Attention(
        ctx,
        replace(
            plain,
            window=layer.window,
            softcap=spec.attention_softcap,
            v_head_dim=spec.v_head_dim,
        ),
        rotaries[layer.rotation] if layer.rotation is not None else None,
        qk_norm=_qk_norm(spec, i),
        sinks=None if names.sinks is None or not layer.sinks else prefix + names.sinks,
        kv_scales=stored_kv_scales(ctx.format, (prefix + names.o).rpartition(".")[0]),
        chunk=layer.chunk,
    )


def _qk_norm(spec: DecoderSpec, i: int) -> QkNorm | None:
    """Return the norms of each head's q and k, which take no notice of a temperature."""
    layer, names = spec.layers[i], spec.names
    if names.qk_norm is None or names.wide_qk_norm:
        norm = QkNorm(spec.norm_eps, None) if layer.unit_qk else None
    else:
        first, second = (names.layer.format(i) + name for name in names.qk_norm)
        norm = QkNorm(spec.norm_eps, (first, second), spec.norm_offset, names.late_qk_norm)
    assert norm is None or layer.temperature is None, "a norm would undo the temperature"
    return norm


class _WideNorms:
    """Norms of q and k over all heads."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, prefix: str) -> None:
        assert spec.names.qk_norm is not None
        self._norms = []
        for name, heads in zip(
            spec.names.qk_norm, (spec.num_heads, spec.num_kv_heads), strict=True
        ):
            section = Section(heads, spec.head_dim, shared=heads == spec.num_kv_heads)
            split = ctx.split("attention heads", section)
            whole = heads * spec.head_dim
            self._norms.append(DividedRMSNorm(ctx, prefix + name, whole, split, spec.norm_eps))

    def __call__(self, qkv: Tensor) -> None:
        """Overwrite q and k in qkv [num_tokens, all channels]."""
        begin = 0
        for norm in self._norms:
            part = qkv[:, begin : (begin := begin + norm.size)]
            part.copy_(norm(part))


class StateMixer:
    """A Mamba-2 block over the states of sequences."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        block, size = spec.state, spec.hidden_size
        assert block is not None
        prefix = f"{spec.names.layer.format(i)}{block.name}."
        self._space = StateSpace(ctx, block.space, prefix, block.conv_bias)
        quantize = spec.quantizes("state", ctx.format)
        inner, width = block.space.inner_size, sum(block.space.sections)
        into, out = [(f"{prefix}in_proj", width)], [(f"{prefix}out_proj", size)]
        rows, columns = self._space.inputs, self._space.outputs
        self._in = Linear(
            ctx, Matrix(ctx, into, size, bias=block.in_bias, quantize=quantize, outputs=rows)
        )
        self._out = Linear(
            ctx, Matrix(ctx, out, inner, bias=block.out_bias, quantize=quantize, inputs=columns)
        )
        self._scales = None if block.scales is None else _scales(block.scales, self._space, ctx)
        self.input_quant = self._in.input_quant

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        projected = self._in(hidden)
        if self._scales is not None:
            projected = projected.mul_(self._scales)
        out = self._space(projected, batch)
        return self._out(out if keep is None else out[keep])


def _scales(factors: Sequence[float], space: StateSpace, ctx: BuildContext) -> Tensor:
    """Return the factor of each column of this rank's projection: of z, x, B, C and dt."""
    spec = space.spec
    group = spec.num_groups * spec.state_size
    widths = torch.tensor([spec.inner_size, spec.inner_size, group, group, spec.num_heads])
    values = torch.tensor(factors, dtype=torch.float32).repeat_interleave(widths)
    return values.to(ctx.device, ctx.torch_dtype)


class BothMixer:
    """Attention and a Mamba-2 block side by side, whose outputs are added."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        assert spec.state is not None
        self._factors = spec.state
        self._attention = AttentionMixer(spec, ctx, i, rotaries)
        self._state = StateMixer(spec, ctx, i, rotaries)
        same = self._attention.input_quant == self._state.input_quant
        plain = self._factors.attention_in == 1.0
        self.input_quant = self._state.input_quant if same and plain else None

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        factors, taken = self._factors, hidden
        if factors.attention_in != 1.0:
            assert isinstance(hidden, Tensor)
            taken = hidden * factors.attention_in
        out = self._attention(taken, batch, keep) * factors.attention_out
        return out.add_(self._state(hidden, batch, keep), alpha=factors.state_out)


class MlpMixer:
    """An MLP in a mixer's place, of models whose layers have one block each."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        self._mlp = build_mlp(spec, ctx, i)
        self.input_quant = None  # so that tokens can be chosen before the products

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        assert isinstance(hidden, Tensor)
        return self._mlp(hidden if keep is None else hidden[keep])


#: What `LayerSpec.mixer` may name.
MIXERS: Mapping[str, Callable[[DecoderSpec, BuildContext, int, Rotaries], Mixer]] = {
    "attention": AttentionMixer,
    "state": StateMixer,
    "delta": DeltaMixer,
    "attention+state": BothMixer,
    **dict.fromkeys(("latent", "indexed", "shared"), LatentMixer),
    "mlp": MlpMixer,
}
