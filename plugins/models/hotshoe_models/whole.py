"""Layers of a decoder as one question, for those that have the form of slot `decoder_layer`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, stored_kv_scales
from hotshoe.layers.decoder_layer import (
    DecoderLayer,
    LayerParts,
    ModelStep,
    build_layer,
    build_step,
    shared,
)
from hotshoe.slots import DecoderLayerSpec, GatedMlpSpec, Quantized, QuantSpec
from hotshoe_models.mixers import Rotaries
from hotshoe_models.mlps import mlp_matrices
from hotshoe_models.norms import Norm, build_norm
from hotshoe_models.projections import (
    attention_spec,
    changes_values,
    o_matrix,
    qk_norm_of,
    qkv_matrix,
)
from hotshoe_models.spec import DecoderSpec

if TYPE_CHECKING:
    from hotshoe_models.decoder import Layer


class Whole:
    """A layer, or all of them, in one call of a candidate; ends as `Layer` does."""

    def __init__(self, call: DecoderLayer | ModelStep) -> None:
        self._call = call
        self._next_norm: Norm | None = None

    def join(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, behind: Layer | Whole | None
    ) -> None:
        """See `Layer`."""
        if behind is not None:
            name, quant = norm_before(spec, i + 1, behind)
            self._next_norm = build_norm(spec, ctx, name, quant)
        elif i + 1 == len(spec.layers):
            self._next_norm = build_norm(spec, ctx, spec.names.final_norm)

    def __call__(
        self, hidden: Tensor | Quantized, residual: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """See `Layer`; what is computed starts from the residual alone."""
        out = self._call(residual, batch)
        if keep is not None:
            out = out[keep]
        return (out if self._next_norm is None else self._next_norm(out)), out


def whole_layers(
    spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: Rotaries
) -> Iterator[tuple[int, Whole | None]]:
    """Yield the layers of a stage that are served whole, with None for those to be composed.

    Where one call serves the step, that is all there is.
    """
    parts = {i: layer_parts(spec, ctx, i, rotaries) for i in own}
    step = build_step(ctx, [*parts.values()])
    if step is not None:
        yield own.stop - 1, Whole(step)
        return
    for i, one in parts.items():
        layer = build_layer(ctx, one)
        yield i, None if layer is None else Whole(layer)


def norm_before(
    spec: DecoderSpec, i: int, layer: Layer | Whole
) -> tuple[str | None, QuantSpec | None]:
    """Return the name of the norm in front of a layer, and what it may quantize to; whole layers
    norm by themselves."""
    if isinstance(layer, Whole):
        return None, None
    names = spec.layers[i].names or spec.names
    return under(names.layer.format(i), names.input_norm), layer.input_quant


def under(prefix: str, name: str | None) -> str | None:
    """Return a checkpoint name within a layer; None for what the layer has not."""
    return None if name is None else prefix + name


def layer_parts(
    spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries
) -> LayerParts | None:
    """Return a layer as one question; None for a layer of another form."""
    spec = spec.sized(i)
    names, layer = spec.names, spec.layers[i]
    prefix = names.layer.format(i)
    scales = ctx.kv_scales(stored_kv_scales(ctx.format, (prefix + names.o).rpartition(".")[0]))
    if scales == "tensor" or not _has_the_form(spec, i) or ctx.offload is not None:
        return None
    (qkv, gates), o = qkv_matrix(spec, ctx, i), o_matrix(spec, ctx, i)
    gate_up, down = mlp_matrices(spec, ctx, i)
    assert not gates
    qk_norm = qk_norm_of(spec, i)
    norms = {"input_norm": f"{prefix}{names.input_norm}", "mlp_norm": f"{prefix}{names.mlp_norm}"}
    if qk_norm is not None and qk_norm.names is not None:
        norms |= dict(zip(("q_norm", "k_norm"), qk_norm.names, strict=True))
    sinks = None if names.sinks is None or not layer.sinks else prefix + names.sinks
    rotary = None if layer.rotation is None else rotaries[layer.rotation]
    attention = attention_spec(spec, ctx, i)
    asked = DecoderLayerSpec(
        qkv.spec,
        replace(attention, sinks=sinks is not None, kv_scales=scales),
        o.spec,
        GatedMlpSpec(gate_up.spec, down.spec, spec.activation),
        spec.norm_eps,
        spec.norm_offset,
        rotary.rotary_dim if rotary else 0,
        rotary.interleaved if rotary else False,
        qk_norm.eps if qk_norm else None,
        qk_norm.offset if qk_norm else 0.0,
    )
    matrices = {"qkv": qkv, "o": o, "gate_up": gate_up, "down": down}
    return LayerParts(shared(ctx, asked), matrices, norms, sinks, rotary)


def _has_the_form(spec: DecoderSpec, i: int) -> bool:
    """Tell whether `DecoderLayerSpec` says all of a layer."""
    names, layer = spec.names, spec.layers[i]
    qk_norm = qk_norm_of(spec, i)
    return (
        layer.mixer == "attention"
        and layer.mixture is None
        and layer.mlp
        and all(other.shares is None for other in spec.layers)
        and (layer.chunk, layer.temperature, layer.qkv_inputs, layer.sparsity)
        == (None, None, None, 0.0)
        and spec.norm == "rms"
        and spec.norm_weight
        and spec.gated
        and not (spec.parallel or spec.gated_attention or changes_values(spec, i))
        and spec.qkv_limit is None
        and (spec.residual_scale, spec.mlp_scale, spec.gate_scale) == (1.0, 1.0, 1.0)
        and spec.gate_limits is None
        and (names.input_norm is not None and names.mlp_norm is not None)
        and (names.post_attention_norm, names.post_mlp_norm) == (None, None)
        and not (names.wide_qk_norm or names.layer_qk_norm)
        and (qk_norm is None or (qk_norm.names is not None and qk_norm.weighted))
    )
