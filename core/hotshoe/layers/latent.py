"""Latent attention layer: a cache of one row per token, and the matrix that makes heads of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotshoe.layers.cache import Prepare
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.indexer import Asked, Chooser, pack, unpack
from hotshoe.layers.latent_adapters import AdaptedLatents
from hotshoe.layers.matrix import Matrix
from hotshoe.layers.norm import RMSNorm
from hotshoe.layers.rotary import Rotary
from hotshoe.layers.rows import RowLayer
from hotshoe.layers.split import Section
from hotshoe.layers.weights import Place
from hotshoe.slots import (
    CacheView,
    MlaAttentionSpec,
    SparseMlaSpec,
    StepShape,
    renewed,
    whole_step,
)
from hotshoe.slots.reference.compressed import places_of
from hotshoe.slots.reference.linear import plain_weight
from hotshoe.slots.reference.rotary import rotate
from hotshoe.types.cache import CacheKind


@dataclass(frozen=True, slots=True)
class LatentNames:
    """Checkpoint names of weights that lie between the projections.

    Attributes:
        up: The matrix that makes keys and values of latents.
        latents: The latents' norm; or a layer before this one that asks the same and whose rows it
            reads: it then needs no cache, and makes keys and values of them by its own matrix.
        sinks: Logits of the heads beside chosen tokens; None for none.
    """

    up: str
    latents: str | LatentAttention
    sinks: str | None = None


class LatentAttention(RowLayer):
    """One layer's attention between its projections to q and latents, and the output projection.

    The latents are normed here. Every rank keeps all rows, and the matrix of its own heads.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: The model's heads; `num_heads` is divided among the ranks.
        rotary: The rotation, over `rope_dim` channels.
        names: Of the weights, and whose rows it reads.
        norm_eps: Epsilon of the latents' norm.
        seen: What chooses the tokens that are attended to, for this layer or one before; or how
            many a query sees, itself included, which are chosen tokens to a kernel; None for all.

    Attributes:
        spec: This rank's.
        up_scale: Factor on the matrix `up`, which loading applies; builders set it.

    Raises:
        ConfigError: The heads cannot be divided among the ranks.
    """

    up_scale: float = 1.0

    def __init__(
        self,
        ctx: BuildContext,
        spec: MlaAttentionSpec,
        rotary: Rotary,
        names: LatentNames,
        norm_eps: float,
        seen: Chooser | int | None = None,
    ) -> None:
        window = seen if isinstance(seen, int) and seen < ctx.max_model_len else None
        indexer = None if isinstance(seen, int) else seen
        assert rotary.rotary_dim == spec.rope_dim
        rows = spec.nope_dim + spec.v_dim
        heads = ctx.split("attention heads", Section(spec.num_heads, rows))
        self.spec = replace(spec, num_heads=heads.size // rows, interleaved=rotary.interleaved)
        takers = (
            ctx.adapters if ctx.adapters is not None and ctx.adapters.takes([names.up]) else None
        )
        if takers is not None:
            self.spec = replace(self.spec, adapted=True)
        slot: str = "mla_attention"
        asked: Any = self.spec
        top_k = window if indexer is None else indexer.top_k
        if top_k is not None:
            slot, asked = "sparse_mla_attention", SparseMlaSpec(self.spec, top_k, bool(names.sinks))
        assert names.sinks is None or top_k is not None
        self._asked = (slot, asked)
        self._op = ctx.selector.choose(slot, asked)
        self._indexer, self._window = indexer, window
        parts, latents = [(names.up, spec.num_heads * rows)], names.latents
        # Each head's part is multiplied alone, so it is kept in the model's type, and what only
        # loading would quantize is not quantized.
        self._matrix = Matrix(
            ctx, parts, spec.latent_dim, quantize=not ctx.format.online, outputs=heads
        )
        self._matrix.deliver(ctx, self._load, ctx.holder(slot, asked, ctx.dtype, self._op))
        ctx.weight_bytes.append(self._op.nbytes)
        self._adapted = None
        if takers is not None:
            [share] = self._matrix.shares()
            self._adapted = AdaptedLatents(ctx, takers, share, self.spec, lambda: self.up_scale)
        self._sinks: Tensor | None = None
        if names.sinks is not None:
            self._expect_sinks(ctx, names.sinks, spec.num_heads)
        self._cos_sin = rotary.table
        self._source = None if isinstance(latents, str) else latents
        if not isinstance(latents, str):
            assert (latents._asked, latents._window) == (self._asked, window)
            return
        self._norm = RMSNorm(ctx, latents, spec.latent_dim, norm_eps)
        kind: CacheKind = "latent" if window is None else "window"
        super().__init__(kind, spec.block_size, spec.row, ctx.device, window=window)
        self.planner: tuple[Hashable, Prepare] = (self.spec, self._op.prepare)
        if window is not None:
            self.planner = ((self.spec, window), partial(self._prepare, window))
        ctx.cache_layers.append(self)

    def _load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        spec = self.spec
        up = plain_weight(replace(self._matrix.spec, activation=None), tensors)
        if self.up_scale != 1.0:
            up = up * self.up_scale
        self._op.load(up.view(spec.num_heads, spec.nope_dim + spec.v_dim, spec.latent_dim))

    def _expect_sinks(self, ctx: BuildContext, name: str, num_heads: int) -> None:
        self._heads = ctx.split("attention heads", Section(num_heads))
        self._sinks = torch.zeros(self.spec.num_heads, device=ctx.device)
        holder = ctx.holder(*self._asked, "float32", self)
        place = Place(holder, "sinks", (0, self.spec.num_heads), ())
        ctx.weights.expect(name, (num_heads,), self._take, place=place)

    def _take(self, sinks: Tensor) -> None:
        assert self._sinks is not None
        [own] = self._heads.within(0, len(sinks))
        self._sinks = renewed(self._sinks, sinks[own].to(self._sinks, copy=True))

    def state(self) -> dict[str, Tensor]:
        """Return the logits [num_heads] of this rank, if there are any."""
        return {} if self._sinks is None else {"sinks": self._sinks}

    def _prepare(self, window: int, shape: StepShape, view: CacheView) -> tuple[Any, Tensor]:
        """Have a step prepared, and choose the tokens that each query sees, the last one first."""
        _, positions = places_of(whole_step(shape, view), len(view.slot_mapping))
        back = torch.arange(window, device=positions.device)
        chosen = (positions[:, None] - back).clamp_(min=-1).int()
        return self._op.prepare(shape, view), chosen

    def __call__(
        self, q: Tensor, rows: Tensor | None, batch: ForwardBatch, asked: Asked | None = None
    ) -> Tensor:
        """Write the step's rows and attend.

        Args:
            q: [num_tokens, num_heads * (nope_dim + rope_dim)], this rank's heads; overwritten.
            rows: [num_tokens, latent_dim + rope_dim], neither normed nor rotated; None where those
                of another layer are read, which it has written.
            batch: The step.
            asked: What the indexer chooses by; None where it has chosen for a layer before.

        Returns:
            [num_tokens, num_heads * v_dim].
        """
        spec = self.spec
        heads = q.view(len(q), spec.num_heads, -1)
        turned = self._turned(heads, batch) if rows is None else self._write(heads, rows, batch)
        if batch.between is not None:
            packed = turned if asked is None else pack(turned, asked)
            return batch.between(packed, self._read, spec.num_heads * spec.v_dim)
        return self._attend(turned, asked, batch.views)

    def _write(self, q: Tensor, rows: Tensor, batch: ForwardBatch) -> Tensor:
        """Write the step's rows, and return q [num_tokens, num_heads, size], rotated."""
        size = self.spec.latent_dim
        latent = self._norm(rows[:, :size].contiguous())
        assert isinstance(latent, Tensor)
        slots = batch.views[self.view].slot_mapping
        at = (batch.positions, self._cos_sin, self.cache, slots)
        turned: Tensor = self._op.write(q, latent, rows[:, size:], *at)
        return turned

    def _turned(self, q: Tensor, batch: ForwardBatch) -> Tensor:
        """Return q [num_tokens, num_heads, size], rotated."""
        plain, table = self.spec.nope_dim, self._cos_sin[batch.positions.long()]
        q[..., plain:] = rotate(q[..., plain:], table, self.spec.interleaved)
        return q

    def _read(self, packed: Tensor, views: Sequence[CacheView]) -> Tensor:
        """Attend with what was handed over between two pieces of a recorded step."""
        if packed.dim() == 3 or self._indexer is None:
            return self._attend(packed, None, views)
        heads, width = self.spec.num_heads, self.spec.nope_dim + self.spec.rope_dim
        return self._attend(*unpack(packed, (heads, width), self._indexer.spec), views)

    def _attend(self, q: Tensor, asked: Asked | None, views: Sequence[CacheView]) -> Tensor:
        chosen: Sequence[Tensor] = ()
        kept = self if self._source is None else self._source
        prepared = views[kept.view].prepared
        if self._window is not None:
            prepared, *chosen = prepared
        if self._indexer is not None:
            if asked is not None:
                self._indexer.choose(asked, views)
            chosen = (self._indexer.chosen,)
        beside: dict[str, Any] = {} if self._sinks is None else {"sinks": self._sinks}
        adapters = None if self._adapted is None else self._adapted.of(len(q))
        if adapters is not None:
            beside["adapters"] = adapters
        out: Tensor = self._op(q, kept.cache, prepared, *chosen, **beside)
        return out
