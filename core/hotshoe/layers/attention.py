"""Attention layer: rotation and cache write, then paged attention, over this layer's KV cache.

The cache write is an operation of its own that runs for every token of the step before attention
reads, so a block filled in a step may be read by any request of the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.paged import PagedCache
from hotshoe.layers.rotary import Rotary
from hotshoe.layers.trees import BranchingAttention
from hotshoe.layers.weights import Holder, Place
from hotshoe.slots import (
    AttentionOp,
    AttentionSpec,
    CacheView,
    RotaryAndCacheOp,
    RotaryAndCacheSpec,
    ScaledOp,
    SharingAttentionOp,
    renewed,
)


@dataclass(frozen=True, slots=True)
class QkNorm:
    """RMS norms of each head's q and k.

    A rotation changes no mean of squares, so behind it only the weights are left to multiply; and
    since q meets k channel by channel, q takes those of both.

    Attributes:
        eps: Added to the mean of squares.
        names: Of their weights in the checkpoint; None for none.
        offset: Added to the weights.
        late: The weights multiply what is rotated.
    """

    eps: float
    names: tuple[str, str] | None
    offset: float = 0.0
    late: bool = False

    @property
    def weighted(self) -> bool:
        """Whether weights multiply before rotation."""
        return self.names is not None and not self.late


class Attention(PagedCache):
    """One layer's attention between its qkv and output projections.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: This rank's heads, scale, window, soft cap, sinks.
        rotary: The rotation, shared by layers of equal rotation; None for none.
        qk_norm: The norms of each head's q and k; None for none.
        sinks: Checkpoint name of the per-head sink logits; None for none.
        kv_scales: Checkpoint names of the scales of keys and of values, for a cache of 8-bit
            floats; None for none.
        chunk: A query sees its own chunk of so many tokens, up to itself; None for all of them.
    """

    def __init__(
        self,
        ctx: BuildContext,
        spec: AttentionSpec,
        rotary: Rotary | None,
        qk_norm: QkNorm | None = None,
        sinks: str | None = None,
        kv_scales: tuple[str, str] | None = None,
        chunk: int | None = None,
    ) -> None:
        scales = ctx.kv_scales(kv_scales)
        asked = replace(spec, sinks=sinks is not None, kv_scales=scales)
        self._attend: AttentionOp = ctx.selector.choose(*self.question(asked))
        if ctx.tree is not None:
            self._attend = BranchingAttention(ctx, asked, self._attend)
        sharing = isinstance(self._attend, SharingAttentionOp) and self._attend.shares_keys
        self.shares_keys = chunk is None and sharing
        planner = ((asked, chunk), self._attend.prepare)
        super().__init__(ctx, asked, self._attend.layout, planner, chunk)
        self._write: RotaryAndCacheOp = ctx.selector.choose(
            "rotary_and_cache",
            RotaryAndCacheSpec(
                spec.num_heads,
                spec.num_kv_heads,
                spec.head_dim,
                rotary.rotary_dim if rotary else 0,
                ctx.dtype,
                ctx.kv_dtype,
                ctx.block_size,
                self.layout,
                interleaved=rotary.interleaved if rotary else False,
                qk_norm_eps=qk_norm.eps if qk_norm else None,
                qk_norm_offset=qk_norm.offset if qk_norm and qk_norm.weighted else 0.0,
                kv_scales=scales,
                v_head_dim=spec.v_head_dim,
            ),
        )
        self._cos_sin = rotary.table if rotary else None
        self._place = (ctx.device, ctx.torch_dtype)
        self._rank = ctx.rank
        self._qk_norm: tuple[Tensor, Tensor] | None = None
        self._sinks: Tensor | None = None
        self._norms: dict[str, Tensor] = {}
        holder = ctx.holder(*self.question(asked), ctx.dtype, self)
        self._late_norm: QkNorm | None = qk_norm if qk_norm and qk_norm.late else None
        self._factor: Tensor | None = None
        if qk_norm is not None and not qk_norm.weighted:
            ones = torch.ones(spec.head_dim, dtype=ctx.torch_dtype, device=ctx.device)
            self._qk_norm = (ones, ones)
        if qk_norm is not None and qk_norm.names is not None:
            for part, name in zip(("q_norm", "k_norm"), qk_norm.names, strict=True):
                sink = partial(self._take_norm, part)
                ctx.expect_alone(holder, f"{name}.weight", spec.head_dim, sink, part)
        if scales == "tensor":
            assert kv_scales is not None
            self._expect_scales(ctx, holder, kv_scales)
        if sinks is not None:
            self._expect_sinks(ctx, holder, sinks)
        ctx.cache_layers.append(self)

    def question(self, spec: AttentionSpec) -> tuple[str, Any]:
        """Return the slot that serves the layer, and what it is asked for."""
        return "attention", spec

    def _take_norm(self, part: str, tensor: Tensor) -> None:
        """Keep the weight of q's norm or k's."""
        fresh = tensor.to(*self._place, copy=True)
        self._norms[part] = renewed(self._norms.get(part), fresh)
        if len(self._norms) < 2:
            return
        q, k = self._norms["q_norm"], self._norms["k_norm"]
        if self._late_norm is None:
            self._qk_norm = (q, k)
        else:
            offset = self._late_norm.offset
            factor = (q.float() + offset) * (k.float() + offset)
            self._factor = renewed(self._factor, factor)

    def _expect_sinks(self, ctx: BuildContext, holder: Holder, name: str) -> None:
        place = Place(holder, "sinks", (0, self.spec.num_heads), ())
        shape = (self.spec.num_heads * ctx.size,)
        ctx.weights.expect(name, shape, self._take_sinks, place=place)

    def _take_sinks(self, tensor: Tensor) -> None:
        first = self.spec.num_heads * self._rank
        own = tensor[first : first + self.spec.num_heads]
        self._sinks = renewed(self._sinks, own.to(self._place[0], torch.float32, copy=True))

    def _expect_scales(self, ctx: BuildContext, holder: Holder, names: tuple[str, str]) -> None:
        """Ask for the scales of keys and of values, which reader and writer keep."""
        self.kv_scales = torch.ones(2, device=ctx.device)
        for operation in (self._attend, self._write):
            cast(ScaledOp, operation).kv_scales = self.kv_scales
        for at, name in enumerate(names):
            sink = partial(self._take_scale, name, at)
            place = Place(holder, "kv_scales", (at, at + 1), ())
            ctx.weights.expect(name, (), sink, place=place)

    def _take_scale(self, name: str, at: int, scale: Tensor) -> None:
        scale = scale.float()  # in which wider types may be 0
        if not (scale.isfinite() & (scale > 0)).item():
            raise CheckpointError(
                f"{name} is {scale.item()}, but a scale above 0 is needed; fetch or export the "
                "checkpoint again, or use another --kv-cache-dtype"
            )
        assert self.kv_scales is not None
        self.kv_scales[at] = scale.to(self.kv_scales)

    def state(self) -> dict[str, Tensor]:
        """Return the norms' weights [head_dim], the sinks [num_heads] of this rank, and the scales
        [2] of keys and values."""
        rest = {"sinks": self._sinks, "kv_scales": self.kv_scales}
        return self._norms | {name: part for name, part in rest.items() if part is not None}

    def __call__(self, qkv: Tensor, batch: ForwardBatch) -> Tensor:
        """Map qkv [num_tokens, all channels of q, k and v], overwritten, to
        [num_tokens, num_heads * value_dim]."""
        slots = batch.views[self.view].slot_mapping
        q = self._write(qkv, batch.positions, self._cos_sin, self.cache, slots, self._qk_norm)
        if self._factor is not None:
            q.mul_(self._factor)
        return self.read(q, batch)

    def read(self, q: Tensor, batch: ForwardBatch) -> Tensor:
        """Let q [num_tokens, num_heads, head_dim], normed and rotated, look at what the cache has;
        return [num_tokens, num_heads * value_dim]."""
        if batch.between is not None:
            width = None if self.spec.v_head_dim is None else q.shape[1] * self.spec.value_dim
            return batch.between(q, self._read, width)
        return self._read(q, batch.views)

    def _read(self, q: Tensor, views: Sequence[CacheView]) -> Tensor:
        return self._attend(q, self.cache, views[self.view].prepared, self._sinks)
