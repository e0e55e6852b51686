"""Layers of Gemma 3n. The state is several streams of residuals [count, n, hidden_size].

A layer predicts all streams, computes with one of them, and corrects all by how far that one was
from its prediction. Source: Baykal et al. 2023, "Alternating Updates for Efficient Transformers",
and the weights of Gemma 3n.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Rotary, Rotation, Scores
from hotshoe_models.mixers import Mixer
from hotshoe_models.mlps import build_mlp
from hotshoe_models.per_layer import LayerInput, PerLayerDecoder, Vector, linear, norm
from hotshoe_models.shared import build_mixer
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.stream_specs import StreamSpec

#: Least mean of squares that a stream is divided by.
LEAST = 1e-5


def _like(one: Tensor, other: Tensor) -> Tensor:
    """Scale each row of `other` to the magnitude of that of `one`."""
    wanted = one.square().mean(-1, keepdim=True).sqrt()
    return other * wanted / other.square().mean(-1, keepdim=True).clamp(min=LEAST).sqrt()


class _Layer:
    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: dict[Rotation, Rotary],
        mixers: dict[int, Mixer],
    ) -> None:
        assert spec.streams is not None
        prefix, rank = spec.names.layer.format(i), spec.streams.laurel_rank
        self._streams = _Streams(spec, spec.streams, ctx, f"{prefix}altup.")
        self._input_norm = norm(spec, ctx, f"{prefix}input_layernorm")
        self._left = linear(ctx, f"{prefix}laurel.linear_left", rank, spec.hidden_size)
        self._right = linear(ctx, f"{prefix}laurel.linear_right", spec.hidden_size, rank)
        self._laurel_norm = norm(spec, ctx, f"{prefix}laurel.post_laurel_norm")
        self._mixer = mixers[i] = build_mixer(spec, ctx, i, rotaries, mixers)
        self._attention_norm = norm(spec, ctx, f"{prefix}post_attention_layernorm")
        self._mlp_norm = norm(spec, ctx, f"{prefix}pre_feedforward_layernorm")
        self._mlp = build_mlp(spec, ctx, i)
        self._end_norm = norm(spec, ctx, f"{prefix}post_feedforward_layernorm")
        self._own = LayerInput(spec, ctx, i)

    def __call__(
        self, state: Tensor, own: Tensor | None, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """Map streams [count, num_tokens, hidden_size] to the next layer's, of tokens at keep."""
        assert own is not None
        predicted = self._streams.predict(state)
        active = self._streams.active
        normed = self._input_norm(predicted[active])
        out = self._attention_norm(self._mixer(normed, batch, keep))
        if keep is not None:
            predicted, normed = predicted[:, keep], normed[keep]
        beside = normed + self._laurel_norm(self._right(self._left(normed)))
        mixed = (predicted[active] + out + beside) / math.sqrt(2)
        made = mixed + self._end_norm(self._mlp(self._mlp_norm(mixed)))
        corrected = self._streams.correct(predicted, made)
        corrected[1:] += self._own(self._streams.scaled(corrected[active]), own)
        return corrected


class _Streams:
    """How a layer predicts and corrects the streams; the factors depend on the token."""

    def __init__(
        self, spec: DecoderSpec, streams: StreamSpec, ctx: BuildContext, prefix: str
    ) -> None:
        count, self.active = streams.count, streams.active

        def small(name: str, rows: int, columns: int) -> Scores:
            return Scores(ctx, prefix + name, rows, columns)

        self._count, self._factor = count, 1.0 / spec.hidden_size
        self._norm = norm(spec, ctx, f"{prefix}router_norm")
        self._router = small("modality_router", count, spec.hidden_size)
        self._predicting = small("prediction_coefs", count * count, count)
        self._correcting = small("correction_coefs", count, count)
        self._scale: Vector | None = None
        name = f"{prefix}correct_output_scale"
        if streams.scaled:
            self._scale = Vector(ctx, name, spec.hidden_size)
        else:
            ctx.weights.ignore([r"\.altup\.correct_output_scale$"])

    def _modalities(self, x: Tensor) -> Tensor:
        """Return [n, count] of x [n, hidden_size]."""
        return torch.tanh(self._router(self._norm(x).mul_(self._factor))).to(x.dtype)

    def predict(self, state: Tensor) -> Tensor:
        """Add to each stream a mixture of all: a new tensor like the state."""
        factors = self._predicting(self._modalities(state[self.active].contiguous()))
        factors = factors.view(-1, self._count, self._count).to(state.dtype)
        return torch.einsum("nij,jns->ins", factors, state) + state

    def correct(self, predicted: Tensor, made: Tensor) -> Tensor:
        """Add to each stream a share of what the layer made [n, hidden_size] beyond prediction."""
        factors = (self._correcting(self._modalities(made)) + 1.0).to(made.dtype)
        return (made - predicted[self.active]) * factors.T[:, :, None] + predicted

    def scaled(self, x: Tensor) -> Tensor:
        """Scale [n, hidden_size] by channel, where the model has factors."""
        return x.contiguous() if self._scale is None else x * self._scale.value


class Gemma3nDecoder(PerLayerDecoder):
    """See `PerLayerDecoder`."""

    layer_type = _Layer

    def __init__(self, spec: DecoderSpec, ctx: BuildContext) -> None:
        super().__init__(spec, ctx)
        assert spec.streams is not None
        size, further = spec.hidden_size, range(spec.streams.count - 1)
        into, out = "model.altup_projections", "model.altup_unembed_projections"
        self._into = [linear(ctx, f"{into}.{i}", size, size) for i in further]
        self._out = [linear(ctx, f"{out}.{i}", size, size) for i in further]

    def enter(self, hidden: Tensor) -> Tensor:
        """Make the other streams of the embeddings, of equal magnitude."""
        return torch.stack([hidden, *[_like(hidden, into(hidden)) for into in self._into]])

    def leave(self, state: Tensor) -> Tensor:
        """Return the mean of the streams, brought back to the magnitude of the first."""
        first, *others = state.unbind()
        made = [_like(first, out(x.contiguous())) for out, x in zip(self._out, others, strict=True)]
        return torch.stack([first, *made]).mean(0)
