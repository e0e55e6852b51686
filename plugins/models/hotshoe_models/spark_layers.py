"""Layers of Muse Spark: gates of the residual, and norms of what heads and experts put out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Holder, Place, RMSNorm, Rotary, Rotation
from hotshoe.slots import renewed
from hotshoe_models.mixers import AttentionMixer, Mixer, Rotaries
from hotshoe_models.mlps import MLP, build_mlp
from hotshoe_models.normed_experts import NormedExperts, ScaledNorm
from hotshoe_models.per_layer import Layer, PerLayerDecoder, norm
from hotshoe_models.spec import DecoderSpec

#: Least share of a residual's energy that stays.
LEAST = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkParts:
    """What a `DecoderSpec` does not say.

    Attributes:
        temperature: That the gates of the residual are divided by.
        router_factor: On the logits of routers.
    """

    temperature: float
    router_factor: float


class SparkDecoder(PerLayerDecoder):
    """See `PerLayerDecoder`; the state is the residual."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, parts: SparkParts) -> None:
        self._parts = parts
        super().__init__(spec, ctx)

    def build_layer(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: dict[Rotation, Rotary],
        mixers: dict[int, Mixer],
    ) -> Layer:
        """See `PerLayerDecoder`."""
        return SparkLayer(spec, ctx, i, rotaries, self._parts)

    def enter(self, hidden: Tensor) -> Tensor:
        """Norm embeddings; stages behind the first one get the residual."""
        return hidden if self._embedding_norm is None else self._embedding_norm(hidden)


class SparkLayer:
    """Gated attention, then experts or an MLP, with a norm on both sides of each."""

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: Rotaries,
        parts: SparkParts,
    ) -> None:
        names, prefix, size = spec.names, spec.names.layer.format(i), spec.hidden_size
        eps, mixture = spec.post_norm_eps, spec.layers[i].mixture
        assert eps is not None
        gate = f"{prefix}{{}}_residual_gate.gate"
        self._input_norm = norm(spec, ctx, f"{prefix}{names.input_norm}")
        self._mixer = NormedHeads(spec, ctx, i, rotaries)
        self._attention_norm = RMSNorm(ctx, None, size, eps)
        self._after_attention = ResidualGate(ctx, gate.format("post_attention"), size, parts)
        self._mlp_norm = norm(spec, ctx, f"{prefix}{names.mlp_norm}")
        self._mlp: MLP | NormedExperts
        if mixture is None:
            self._mlp = build_mlp(spec, ctx, i)
        else:
            quantize = spec.quantizes("experts", ctx.format)
            numbers = (parts.router_factor, spec.norm_eps, eps)
            self._mlp = NormedExperts(ctx, prefix, mixture, *numbers, quantize)
        self._end_norm = ScaledNorm(ctx, f"{prefix}{names.post_mlp_norm}", size, eps)
        self._after_mlp = ResidualGate(ctx, gate.format("post_feedforward"), size, parts)

    def __call__(
        self, residual: Tensor, own: Tensor | None, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """Map the residual [num_tokens, hidden_size] to the next layer's, of the tokens at keep."""
        out = self._attention_norm(self._mixer(self._input_norm(residual), batch, keep))
        assert isinstance(out, Tensor)
        if keep is not None:
            residual = residual[keep]
        residual = self._after_attention(out, residual)
        return self._after_mlp(self._end_norm(self._mlp(self._mlp_norm(residual))), residual)


class NormedHeads(AttentionMixer):
    """Attention, what each of whose heads puts out is normed in front of its gates."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        super().__init__(spec, ctx, i, rotaries)
        self._head_norm = RMSNorm(ctx, None, spec.value_dim, spec.norm_eps)
        self._dim = spec.value_dim

    def _gated(self, out: Tensor, gates: Tensor) -> Tensor:
        normed = self._head_norm(out.reshape(-1, self._dim))
        assert isinstance(normed, Tensor)
        return super()._gated(normed.view_as(out), gates)


class ResidualGate:
    """The addition of a block's output by a gate for each channel, which closes for the residual as
    it opens for the output: with b = sigmoid(gate / temperature) the output counts b, and the
    residual the square root of 1 - b², so that both together keep their energy. In float32.
    """

    def __init__(self, ctx: BuildContext, name: str, size: int, parts: SparkParts) -> None:
        self._temperature, self._device = parts.temperature, ctx.device
        self._factors = torch.empty(0)
        holder = Holder("rms_norm", "layer", "float32", self.state)
        place = Place(holder, "factors", (0, size), ())
        ctx.weights.expect(name, (size,), self._take, place=place)

    def _take(self, tensor: Tensor) -> None:
        gate = tensor.to(self._device, torch.float32) / self._temperature
        new = gate.sigmoid()
        old = (torch.sigmoid(-gate) * (1.0 + new)).clamp_(min=LEAST).sqrt_()
        self._factors = renewed(self._factors, torch.stack((new, old), 1))

    def state(self) -> dict[str, Tensor]:
        """Return the factors [size, 2] of output and residual."""
        return {"factors": self._factors} if self._factors.numel() else {}

    def __call__(self, out: Tensor, residual: Tensor) -> Tensor:
        """Return a new residual [n, hidden_size]."""
        new, old = self._factors.unbind(1)
        return (residual * old).addcmul_(out, new).to(residual.dtype)
