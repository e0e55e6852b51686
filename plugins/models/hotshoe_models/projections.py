"""What a `DecoderSpec` says of a layer's attention: its matrices, its heads, the norms of q and k.

Asked while a model is built, for layers that are composed and for those that are served whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hotshoe.layers import (
    Attention,
    BuildContext,
    Matrix,
    QkNorm,
    Rotary,
    Rotation,
    Section,
    stored_kv_scales,
)
from hotshoe.slots import AttentionSpec
from hotshoe_models.head_rows import in_checkpoint, with_gates
from hotshoe_models.mlps import parts_of
from hotshoe_models.spec import DecoderSpec


def qkv_matrix(spec: DecoderSpec, ctx: BuildContext, i: int) -> tuple[Matrix, int]:
    """Return a layer's projection to q, k and v, and the channels of gates in front of q."""
    names, prefix = spec.names, spec.names.layer.format(i)
    kv_dims = (spec.head_dim, spec.value_dim)[: 1 if spec.layers[i].keys_as_values else 2]
    rows = [spec.num_heads * spec.head_dim, *(spec.num_kv_heads * dim for dim in kv_dims)]
    heads = Section(spec.num_heads, spec.head_dim)
    kv_heads = [Section(spec.num_kv_heads, dim, shared=True) for dim in kv_dims]
    outputs = ctx.split("attention heads", heads, *kv_heads)
    gates, stored = 0, names.qkv[: len(rows)]
    if spec.gated_attention and names.gate is None:
        outputs, gates = with_gates(outputs, spec)
        rows[0] *= 2
    elif spec.gated_attention:
        section = Section(spec.num_heads, 1 if names.head_gates else spec.head_dim)
        outputs = ctx.split("attention heads", section, heads, *kv_heads)
        gates = ctx.split("attention heads", section).size
        rows, stored = [section.units * section.width, *rows], (names.gate, *stored)
    matrix = Matrix(
        ctx,
        parts_of(prefix, stored, rows),
        spec.layers[i].qkv_inputs or spec.hidden_size,
        bias=spec.qkv_bias,
        quantize=spec.quantizes("qkv", ctx.format),
        outputs=in_checkpoint(outputs, spec),
        transposed=spec.transposed,
    )
    return matrix, gates


def o_matrix(spec: DecoderSpec, ctx: BuildContext, i: int) -> Matrix:
    """Return a layer's projection of what attention puts out."""
    return Matrix(
        ctx,
        [(spec.names.layer.format(i) + spec.names.o, spec.hidden_size)],
        spec.num_heads * spec.value_dim,
        bias=spec.o_bias,
        quantize=spec.quantizes("o", ctx.format),
        inputs=ctx.split("attention heads", Section(spec.num_heads, spec.value_dim)),
        transposed=spec.transposed,
    )


def changes_values(spec: DecoderSpec, i: int) -> bool:
    """Tell whether values are more than what their matrix makes."""
    return spec.value_norm or spec.value_scale != 1.0 or spec.layers[i].keys_as_values


def attention_spec(spec: DecoderSpec, ctx: BuildContext, i: int) -> AttentionSpec:
    """Return what a layer's attention is, but for sinks and scales."""
    plain = ctx.attention_spec(
        spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.attention_scale
    )
    alibi = spec.alibi
    if alibi is not None:
        alibi = replace(
            alibi, first=ctx.split("attention heads", Section(alibi.heads)).ranges[0][0]
        )
    return replace(
        plain,
        alibi=alibi,
        window=spec.layers[i].window,
        softcap=spec.attention_softcap,
        v_head_dim=spec.v_head_dim,
    )


def qk_norm_of(spec: DecoderSpec, i: int) -> QkNorm | None:
    """Return the norms of each head's q and k, which take no notice of a temperature."""
    layer, names = spec.layers[i], spec.names
    if names.qk_norm is None or names.wide_qk_norm or names.layer_qk_norm:
        norm = QkNorm(spec.norm_eps, None) if layer.unit_qk else None
    else:
        first, second = (names.layer.format(i) + name for name in names.qk_norm)
        norm = QkNorm(spec.norm_eps, (first, second), spec.norm_offset, names.late_qk_norm)
    assert norm is None or layer.temperature is None, "a norm would undo the temperature"
    return norm


def build_attention(
    spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Mapping[Rotation, Rotary]
) -> Attention:
    """Build a layer's attention, which asks for a cache."""
    layer, names, prefix = spec.layers[i], spec.names, spec.names.layer.format(i)
    return Attention(
        ctx,
        attention_spec(spec, ctx, i),
        rotaries[layer.rotation] if layer.rotation is not None else None,
        qk_norm=qk_norm_of(spec, i),
        sinks=None if names.sinks is None or not layer.sinks else prefix + names.sinks,
        kv_scales=stored_kv_scales(ctx.format, (prefix + names.o).rpartition(".")[0]),
        chunk=layer.chunk,
    )
