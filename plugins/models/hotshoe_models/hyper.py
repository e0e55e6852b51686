"""Decoders with hyper-connections: several residual streams that every block mixes by matrices of
its own, made of the streams themselves.

A block takes a weighted sum of the streams, and what it puts out joins each of them by a factor,
while the streams mix by a matrix whose rows and columns sum to 1: slot `hyper_connection`.
Source: Xie et al. 2026, "mHC: Manifold-Constrained Hyper-Connections", arXiv:2512.24880.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, MoE, Place, Rotary, Rotation
from hotshoe.slots import HyperConnectionOp, HyperConnectionSpec, renewed
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixers import Mixer
from hotshoe_models.mlps import build_mlp
from hotshoe_models.per_layer import norm
from hotshoe_models.shared import build_mixer
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import refuse_stages

#: Of the names of the last mixing's weights.
HEAD = "model.hc_head.hc_"
#: What a block put out, and the gates by which it joins the streams; None in front of the first.
Block = tuple[Tensor, Tensor]
#: A token's id goes with its embedding in so many columns, each a digit that every type holds.
DIGITS, BASE = 3, 256


class HyperDecoder(DenseDecoder):
    """See `DenseDecoder`. What passes from layer to layer are streams [n, count, hidden_size].

    Attributes:
        count: Streams.

    Raises:
        ConfigError: Stages are to divide the layers.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext) -> None:
        assert spec.hyper is not None and spec.vocab_size <= BASE**DIGITS
        refuse_stages(ctx, "layers of this model hand on several residual streams")
        super().__init__(spec, ctx)
        self.count, self._keeps = spec.hyper.count, False
        hashed = (layer.mixture is not None and layer.mixture.table_size for layer in spec.layers)
        self._takes_ids = any(hashed)
        self._leave = HyperConnection(spec, ctx, None if spec.hyper.mean else HEAD, ends=True)
        self._norm = norm(spec, ctx, spec.names.final_norm)

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        mixers: dict[int, Mixer] = {}
        self._hyper_layers = [HyperLayer(spec.sized(i), ctx, i, rotaries, mixers) for i in own]

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings for ids [num_tokens] int32, and behind them the digits of ids where
        tokens choose experts."""
        hidden = super().embed(ids)
        return with_digits(hidden, ids) if self._takes_ids else hidden

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """See `hotshoe.models.base.Model`."""
        ids: Tensor | None = None
        if self._takes_ids:
            ids = of_digits(hidden[:, self.hidden_size :])
        streams = hidden[:, None, : self.hidden_size].expand(-1, self.count, -1)
        block: Block | None = None
        for i, layer in enumerate(self._hyper_layers):
            keep = batch.outputs_at if i + 1 == len(self._hyper_layers) else None
            streams, block = layer(streams, block, ids, batch, keep)
        streams, left, _ = self._leave(streams, block)
        normed = self._norm(left)
        return torch.cat((normed, streams.flatten(1)), 1) if self._keeps else normed

    def keep_streams(self) -> None:
        """Append the streams to what `forward` returns, for a head."""
        self.keep_embedding()
        self._keeps = True

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """See `DenseDecoder`; streams behind the states are left out."""
        return super().head(hidden[:, : self.hidden_size].contiguous(), task)


def with_digits(hidden: Tensor, ids: Tensor) -> Tensor:
    """Append to embeddings [num_tokens, hidden_size] the digits of their ids [num_tokens]."""
    digits = ids[:, None] // _powers(ids) % BASE
    return torch.cat((hidden, digits.to(hidden.dtype)), 1)


def of_digits(digits: Tensor) -> Tensor:
    """Return the ids [...] int64 whose digits are [..., DIGITS]."""
    whole = digits.long()
    return (whole * _powers(whole)).sum(-1)


def _powers(like: Tensor) -> Tensor:
    return BASE ** torch.arange(DIGITS, device=like.device)


class HyperLayer:
    """Mixer and MLP, each between what mixes the streams."""

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
        self,
        streams: Tensor,
        block: Block | None,
        ids: Tensor | None,
        batch: ForwardBatch,
        keep: Tensor | None,
    ) -> tuple[Tensor, Block]:
        """Map streams [num_tokens, count, hidden_size] that a block has yet to join to the next
        layer's, of tokens at keep."""
        streams, taken, gates = self._around_mixer(streams, block)
        out = self._mixer(self._input_norm(taken), batch, keep)
        if keep is not None:
            streams, gates = streams[keep], gates[keep]
            ids = None if ids is None else ids[keep]
        streams, taken, gates = self._around_mlp(streams, (out, gates))
        normed = self._mlp_norm(taken)
        mlp = self._mlp
        out = mlp(normed, ids=ids) if isinstance(mlp, MoE) else mlp(normed)
        return streams, (out, gates)


class HyperConnection:
    """What lies between two blocks, with its weights.

    Args:
        spec, ctx: Of the model.
        prefix: Of the weights' names; None where a block takes the mean of the streams.
        ends: Whether no block follows.
    """

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, prefix: str | None, ends: bool = False
    ) -> None:
        assert spec.hyper is not None
        hyper, size = spec.hyper, spec.hidden_size
        numbers = (hyper.count, size, hyper.iterations, hyper.eps, spec.norm_eps)
        joins = (hyper.mixes, hyper.magnitude)
        asked = HyperConnectionSpec(*numbers, ctx.dtype, ends, *joins)
        self._op: HyperConnectionOp = ctx.selector.choose("hyper_connection", asked)
        self._held = dict[str, Tensor]()
        holder = ctx.holder("hyper_connection", asked, "float32", self)
        outputs, share = asked.outputs, 1 / hyper.count - hyper.eps
        shapes = {"fn": (outputs, hyper.count * size), "base": (outputs,), "scale": (asked.scales,)}
        for part, shape in shapes.items():
            self._held[part] = torch.zeros(shape, device=ctx.device)
            if prefix is None:
                continue
            place = Place(holder, part, (0, shape[0]), ())
            ctx.weights.expect(prefix + part, shape, partial(self._take, part), place=place)
        if prefix is None:  # so that each stream's factor, its sigmoid plus eps, is 1 / count
            self._held["base"].fill_(math.log(share / (1 - share)))
        ctx.weight_bytes.append(lambda: sum(t.nbytes for t in self._held.values()))

    def _take(self, part: str, tensor: Tensor) -> None:
        self._held[part] = renewed(self._held[part], tensor.to(self._held[part], copy=True))

    def state(self) -> dict[str, Tensor]:
        """Return matrix, bias and scales, float32."""
        return self._held

    def __call__(self, streams: Tensor, block: Block | None) -> tuple[Tensor, Tensor, Tensor]:
        """See `hotshoe.slots.HyperConnectionOp`."""
        held = self._held
        return self._op(streams, block, held["fn"], held["base"], held["scale"])
