"""Layers of LongCat Flash: two attentions and two MLPs behind each other, and experts beside them.

Experts take what the first MLP takes, and their result joins behind the second one. Some of them
put out what they take. Source: Meituan LongCat Team 2025, arXiv:2509.01322.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    ForwardBatch,
    Mixture,
    Rotary,
    Rotation,
    RoutedExperts,
    Scores,
)
from hotshoe.layers.weights import Holder, Place
from hotshoe.slots import Quantized, QuantSpec, RouterSpec, renewed
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.latent import LatentMixer
from hotshoe_models.mlps import build_mlp
from hotshoe_models.norms import AddNorm, build_add_norm, plain_norm
from hotshoe_models.spec import DecoderSpec

#: Stands for the logarithm of 0; softmax makes 0 of it.
NOTHING = -1e30


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
            prefix = spec.names.layer.format(i)
            experts = IdleExperts(ctx, prefix, self._mixture, self._idle)
            self.layers.append(PairLayer(spec, ctx, i, rotaries, experts))


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
        experts: IdleExperts,
    ) -> None:
        prefix, self._experts = spec.names.layer.format(i), experts
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
        beside = self._experts(normed)
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


class IdleExperts:
    """Experts of slot `moe`, some of which put out what they take and have no weights.

    A token chooses among all of them here. The slot gets the logarithms of the weights of those
    that compute, so that its own choice is the same, and nothing of all others.

    Args:
        ctx: The build context.
        prefix: The layer's.
        mixture: The experts that compute; a softmax of logits has to be their weights.
        idle: How many others there are.
    """

    def __init__(self, ctx: BuildContext, prefix: str, mixture: Mixture, idle: int) -> None:
        router, names = mixture.router, mixture.names
        assert router == RouterSpec() and not mixture.shared_size
        self._count, self._top_k, self._scale = mixture.num_experts, mixture.top_k, mixture.scale
        total = self._count + idle
        self._scores = Scores(ctx, prefix + names.router, total, mixture.hidden_size)
        self._correction = torch.zeros(total, device=ctx.device)
        holder = Holder("moe", "router", "float32", self.state)
        place = Place(holder, "correction", (0, total), ())
        ctx.weights.expect(prefix + names.correction, (total,), self._take, place=place)
        self._experts = RoutedExperts(ctx, prefix, mixture)
        self._sum = ctx.communicator.all_reduce if ctx.communicator is not None else None

    def _take(self, tensor: Tensor) -> None:
        found = tensor.to(self._correction.device, torch.float32, copy=True)
        self._correction = renewed(self._correction, found)

    def state(self) -> dict[str, Tensor]:
        """Return the correction [num_experts + idle]."""
        return {"correction": self._correction}

    def __call__(self, x: Tensor) -> Tensor:
        """Map [num_tokens, hidden_size] to a new tensor of the same shape."""
        scores = self._scores(x).softmax(-1)
        chosen = (scores + self._correction).topk(self._top_k, -1).indices
        kept = torch.zeros_like(scores).scatter_(1, chosen, scores.gather(1, chosen))
        computing, idle = kept[:, : self._count], kept[:, self._count :].sum(-1, keepdim=True)
        weight = computing.sum(-1, keepdim=True).mul_(self._scale)
        y = self._experts(x, computing.log().clamp_(min=NOTHING))
        y = y * weight.to(y.dtype)
        if self._sum is not None:
            y = self._sum(y, y)
        return y.add_(x * idle.mul_(self._scale).to(x.dtype))
