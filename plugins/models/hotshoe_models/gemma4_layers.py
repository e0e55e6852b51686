"""Layers of Gemma 4: attention, an MLP, experts beside it in some variants, a scale at the end."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    ForwardBatch,
    Mixture,
    MoE,
    Rotary,
    Rotation,
)
from hotshoe_models.mixers import Mixer
from hotshoe_models.mlps import build_mlp
from hotshoe_models.per_layer import LayerInput, PerLayerDecoder, Vector, norm
from hotshoe_models.shared import build_mixer
from hotshoe_models.spec import DecoderSpec


class Gemma4Layer:
    """Attention, an MLP with experts beside it, and the layer's own input; scaled at the end."""

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: dict[Rotation, Rotary],
        mixers: dict[int, Mixer],
    ) -> None:
        prefix, layer = spec.names.layer.format(i), spec.layers[i]
        self._input_norm = norm(spec, ctx, f"{prefix}input_layernorm")
        self._mixer = mixers[i] = build_mixer(spec, ctx, i, rotaries, mixers)
        self._attention_norm = norm(spec, ctx, f"{prefix}post_attention_layernorm")
        self._mlp_norm = norm(spec, ctx, f"{prefix}pre_feedforward_layernorm")
        dense = replace(layer, mixture=None)
        layers = (*spec.layers[:i], dense, *spec.layers[i + 1 :])
        self._mlp = build_mlp(replace(spec, layers=layers), ctx, i)
        self._experts = (
            None if layer.mixture is None else _Experts(spec, ctx, prefix, layer.mixture)
        )
        self._end_norm = norm(spec, ctx, f"{prefix}post_feedforward_layernorm")
        self._own = None if spec.per_layer is None else LayerInput(spec, ctx, i)
        self._scale = Vector(ctx, f"{prefix}layer_scalar", 1)

    def __call__(
        self, residual: Tensor, own: Tensor | None, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """Map the residual [num_tokens, hidden_size] to the next layer's, of the tokens at keep."""
        out = self._mixer(self._input_norm(residual), batch, keep)
        if keep is not None:
            residual = residual[keep]
        residual = residual + self._attention_norm(out)
        out = self._mlp(self._mlp_norm(residual))
        if self._experts is not None:
            out = self._experts(out, residual)
        residual = residual + self._end_norm(out)
        if self._own is not None:
            assert own is not None
            residual = residual + self._own(residual, own)
        return residual.mul_(self._scale.value)


class _Experts:
    """Adds what experts make of the residual to what the MLP puts out, each of them normed."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, prefix: str, experts: Mixture) -> None:
        self._dense_norm = norm(spec, ctx, f"{prefix}post_feedforward_layernorm_1")
        self._input_norm = norm(spec, ctx, f"{prefix}pre_feedforward_layernorm_2")
        self._experts_norm = norm(spec, ctx, f"{prefix}post_feedforward_layernorm_2")
        self._router_norm = norm(spec, ctx, f"{prefix}router.scale")
        self._factor = spec.hidden_size**-0.5
        self._experts = MoE(ctx, prefix, experts, quantize=spec.quantizes("experts", ctx.format))

    def __call__(self, out: Tensor, residual: Tensor) -> Tensor:
        judged = self._router_norm(residual).mul_(self._factor)
        chosen = self._experts(self._input_norm(residual), judged)
        return self._dense_norm(out).add_(self._experts_norm(chosen))


class Gemma4Decoder(PerLayerDecoder):
    """See `PerLayerDecoder`; the state is the residual."""

    layer_type = Gemma4Layer
