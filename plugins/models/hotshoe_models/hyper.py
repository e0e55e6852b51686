"""Decoders with hyper-connections: several residual streams that every block mixes by matrices of
its own, made of the streams themselves.

A block takes a weighted sum of the streams, and what it puts out joins each of them by a factor,
while the streams mix by a matrix whose rows and columns sum to 1.
Source: Xie et al. 2026, "mHC: Manifold-Constrained Hyper-Connections", arXiv:2512.24880.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext, ForwardBatch, Holder, MoE, Place, Rotary, Rotation
from hotshoe.slots import renewed
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixers import Mixer
from hotshoe_models.mlps import build_mlp
from hotshoe_models.per_layer import norm
from hotshoe_models.shared import build_mixer
from hotshoe_models.spec import DecoderSpec

#: Of the names of the last mixing's weights.
HEAD = "model.hc_head.hc_"
#: A token's id goes with its embedding in so many columns, each a digit that every type holds.
DIGITS, BASE = 3, 256


class HyperDecoder(DenseDecoder):
    """See `DenseDecoder`. What passes from layer to layer are streams [n, count, hidden_size].

    Raises:
        ConfigError: Stages are to divide the layers.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext) -> None:
        assert spec.hyper is not None and spec.vocab_size <= BASE**DIGITS
        if ctx.stage.size > 1:
            raise ConfigError(
                "layers of this model hand on several residual streams, so that no stages can "
                "divide them; use a --pipeline-parallel-size of 1"
            )
        super().__init__(spec, ctx)
        self._count = spec.hyper.count
        hashed = (layer.mixture is not None and layer.mixture.table_size for layer in spec.layers)
        self._takes_ids = any(hashed)
        self._leave = HyperHead(spec, ctx)
        self._norm = norm(spec, ctx, spec.names.final_norm)

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        mixers: dict[int, Mixer] = {}
        self._hyper_layers = [_Layer(spec.sized(i), ctx, i, rotaries, mixers) for i in own]

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings for ids [num_tokens] int32, and behind them the digits of ids where
        tokens choose experts."""
        hidden = super().embed(ids)
        if not self._takes_ids:
            return hidden
        digits = ids[:, None] // self._powers(ids) % BASE
        return torch.cat((hidden, digits.to(hidden.dtype)), 1)

    @staticmethod
    def _powers(like: Tensor) -> Tensor:
        return BASE ** torch.arange(DIGITS, device=like.device)

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """See `hotshoe.models.base.Model`."""
        ids: Tensor | None = None
        if self._takes_ids:
            digits = hidden[:, self.hidden_size :].long()
            ids = (digits * self._powers(digits)).sum(1)
        streams = hidden[:, None, : self.hidden_size].expand(-1, self._count, -1)
        for i, layer in enumerate(self._hyper_layers):
            keep = batch.outputs_at if i + 1 == len(self._hyper_layers) else None
            streams = layer(streams, ids, batch, keep)
        return self._norm(self._leave(streams))


class _Layer:
    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: dict[Rotation, Rotary],
        mixers: dict[int, Mixer],
    ) -> None:
        names, prefix = spec.names, spec.names.layer.format(i)
        assert names.input_norm is not None and names.mlp_norm is not None
        self._around_mixer = HyperConnection(spec, ctx, f"{prefix}hc_attn_")
        self._around_mlp = HyperConnection(spec, ctx, f"{prefix}hc_ffn_")
        self._input_norm = norm(spec, ctx, prefix + names.input_norm)
        self._mlp_norm = norm(spec, ctx, prefix + names.mlp_norm)
        self._mixer = mixers[i] = build_mixer(spec, ctx, i, rotaries, mixers)
        self._mlp = build_mlp(spec, ctx, i)

    def __call__(
        self, streams: Tensor, ids: Tensor | None, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """Map streams [num_tokens, count, hidden_size] to the next layer's, of tokens at keep."""
        taken, post, mix = self._around_mixer(streams)
        out = self._mixer(self._input_norm(taken), batch, keep)
        if keep is not None:
            streams, post, mix = streams[keep], post[keep], mix[keep]
            ids = None if ids is None else ids[keep]
        streams = joined(streams, out, post, mix)
        taken, post, mix = self._around_mlp(streams)
        normed = self._mlp_norm(taken)
        mlp = self._mlp
        out = mlp(normed, ids=ids) if isinstance(mlp, MoE) else mlp(normed)
        return joined(streams, out, post, mix)


def joined(streams: Tensor, out: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    """Return the streams behind a block.

    Args:
        streams: [n, count, hidden_size], before it.
        out: [n, hidden_size], what it puts out.
        post: [n, count] float32, the factor of that in each stream.
        mix: [n, count, count] float32; entry (i, j) is the share of stream i in the next stream j.
    """
    mixed = torch.matmul(mix.mT.to(streams.dtype), streams)
    return torch.addcmul(mixed, post.to(out.dtype)[..., None], out[:, None])


class _Mixes:
    """What streams say of their own mixing: a product with all of them, normed together."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, prefix: str, outputs: int) -> None:
        assert spec.hyper is not None
        inputs, scales = spec.hyper.count * spec.hidden_size, 1 if prefix == HEAD else 3
        self._eps, self._held = spec.norm_eps, dict[str, Tensor]()
        holder = Holder("linear", "layer", "float32", self.state)
        shapes = {"fn": (outputs, inputs), "base": (outputs,), "scale": (scales,)}
        for part, shape in shapes.items():
            self._held[part] = torch.zeros(shape, device=ctx.device)
            place = Place(holder, part, (0, shape[0]), ())
            ctx.weights.expect(prefix + part, shape, partial(self._take, part), place=place)
        ctx.weight_bytes.append(lambda: sum(t.nbytes for t in self._held.values()))

    def _take(self, part: str, tensor: Tensor) -> None:
        self._held[part] = renewed(self._held[part], tensor.to(self._held[part], copy=True))

    def state(self) -> dict[str, Tensor]:
        """Return matrix, bias and scales, float32."""
        return self._held

    def __call__(self, streams: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Return parts [n, size] float32 for streams [n, count, hidden_size], scaled one by one."""
        flat = streams.flatten(1).float()
        inverse = torch.rsqrt(flat.square().mean(-1, keepdim=True) + self._eps)
        made = functional.linear(flat, self._held["fn"]) * inverse
        parts, base = made.split(list(sizes), -1), self._held["base"].split(list(sizes))
        scales = self._held["scale"].unbind()
        return [part * s + b for part, b, s in zip(parts, base, scales, strict=True)]


class HyperConnection:
    """What a block takes of the streams, and how they go on behind it."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, prefix: str) -> None:
        assert spec.hyper is not None
        self._hyper, count = spec.hyper, spec.hyper.count
        self._sizes = (count, count, count * count)
        self._mixes = _Mixes(spec, ctx, prefix, sum(self._sizes))

    def __call__(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the block takes [n, hidden_size], and `post` and `mix` of `joined`."""
        pre, post, mix = self._mixes(streams, self._sizes)
        mix = mix.view(len(mix), self._hyper.count, self._hyper.count)
        balanced = doubly_stochastic(mix, self._hyper.iterations, self._hyper.eps)
        return _weighted(streams, pre, self._hyper.eps), 2.0 * torch.sigmoid(post), balanced


class HyperHead:
    """The sum of streams behind the last layer."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext) -> None:
        assert spec.hyper is not None
        self._hyper = spec.hyper
        self._mixes = _Mixes(spec, ctx, HEAD, spec.hyper.count)

    def __call__(self, streams: Tensor) -> Tensor:
        """Map streams [n, count, hidden_size] to hidden states [n, hidden_size]."""
        [pre] = self._mixes(streams, (self._hyper.count,))
        return _weighted(streams, pre, self._hyper.eps)


def _weighted(streams: Tensor, logits: Tensor, eps: float) -> Tensor:
    """Add up streams [n, count, hidden_size], each by the sigmoid of its logit [n, count]."""
    factors = torch.sigmoid(logits) + eps
    return torch.einsum("nc,ncs->ns", factors, streams.float()).to(streams.dtype)


def doubly_stochastic(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Bring the exponentials of matrices near to rows and columns that sum to 1.

    Source: Sinkhorn and Knopp 1967.

    Args:
        logits: [n, count, count] float32.
        iterations: How often columns are divided by their sums; rows are, between.
        eps: Added to entries at first, and to sums.
    """
    made = torch.softmax(logits, -1) + eps
    made = made / (made.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        made = made / (made.sum(-1, keepdim=True) + eps)
        made = made / (made.sum(-2, keepdim=True) + eps)
    return made
