"""Layers of LongCat Flash: two attentions and two MLPs behind each other, and experts beside them.

Experts take what the first MLP takes, and their result joins behind the second one. Some of them
put out what they take. Source: Meituan LongCat Team 2025, arXiv:2509.01322.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Mixture, Rotary, Rotation, Scores
from hotshoe.slots import Quantized, QuantSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.idle_experts import IdleExperts
from hotshoe_models.latent import LatentMixer
from hotshoe_models.mlps import build_mlp
from hotshoe_models.norms import AddNorm, build_add_norm, plain_norm
from hotshoe_models.spec import DecoderSpec


class LongcatDecoder(DenseDecoder):
    """See `DenseDecoder`.

    Args:
        mixture: The experts that compute, of every layer; its router says how weights grow.
        idle: How many others there are, which put out what they take.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, mixture: Mixture, idle: int) -> None:
        self._mixture, self._idle = mixture, idle
        super().__init__(spec, ctx)

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        """Build this stage's layers, which have their norms themselves."""
        self._first_norm = None
        self.layers = []
        for i in own:
            prefix, total = spec.names.layer.format(i), self._mixture.num_experts + self._idle
            router = Scores(ctx, prefix + self._mixture.names.router, total, spec.hidden_size)
            experts = IdleExperts(ctx, prefix, self._mixture, self._idle)
            self.layers.append(PairLayer(spec, ctx, i, rotaries, (router, experts)))


class PairLayer:
    """Attention, MLP, attention and MLP, each added to the residual, and experts beside the last
    three."""

    input_quant = None

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: dict[Rotation, Rotary],
        beside: tuple[Scores, IdleExperts],
    ) -> None:
        prefix, (self._router, self._experts) = spec.names.layer.format(i), beside
        self._mixers, self._mlps, norms = [], [], []
        for half in range(2):
            own = _half(spec, half)
            mixer, mlp = LatentMixer(own, ctx, i, rotaries), build_mlp(own, ctx, i)
            self._mixers.append(mixer)
            self._mlps.append(mlp)
            # Experts take plain numbers, as the first MLP does then.
            for name, quant in (
                ("input_layernorm", mixer.input_quant),
                ("post_attention_layernorm", mlp.input_quant if half else None),
            ):
                norms.append((f"{prefix}{name}.{half}", quant))
        self._first_norm = plain_norm(spec, ctx, norms[0][0])
        self._norms = [_norm(spec, ctx, *norm) for norm in norms[1:]]
        last = i + 1 == len(spec.layers)
        self._final = _norm(spec, ctx, spec.names.final_norm if last else None, None)

    def __call__(
        self, hidden: Tensor | Quantized, residual: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """See `hotshoe_models.decoder.Layer`; `hidden` is not read."""
        out = self._mixers[0](self._first_norm(residual), batch, None)
        normed, residual = self._norms[0](out, residual)
        assert isinstance(normed, Tensor)
        beside = self._experts(normed, self._router(normed))
        normed, residual = self._norms[1](self._mlps[0](normed), residual)
        out = self._mixers[1](normed, batch, keep)
        if keep is not None:
            residual, beside = residual[keep], beside[keep]
        normed, residual = self._norms[2](out, residual)
        return self._final(self._mlps[1](normed).add_(beside), residual)


def _norm(
    spec: DecoderSpec, ctx: BuildContext, name: str | None, quant: QuantSpec | None
) -> AddNorm:
    return build_add_norm(spec, ctx, name, quant, 1.0)


def _half(spec: DecoderSpec, half: int) -> DecoderSpec:
    """Return the specification with the names of a layer's first or second half."""
    assert spec.latent is not None
    gate, up, down = (f"mlps.{half}.{name}_proj" for name in ("gate", "up", "down"))
    names = replace(spec.names, gate_up=(gate, up), down=down)
    latent = replace(spec.latent, name=f"self_attn.{half}")
    return replace(spec, names=names, latent=latent)
