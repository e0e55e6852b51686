"""Attention whose heads read chosen blocks of tokens, by slots `block_indexer` and `attention`, or
chosen groups of them, by slots `indexer` and `attention`.

Every query is a request of its own for slot `attention`, whose block table names the chosen blocks
alone, in order. Keys are rotated as they are written, so it does not matter where they lie. Heads
of one key head choose alike, and others do not, so each key head has a cache of its own.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.layers.attention import Attention, QkNorm
from hotshoe.layers.cache import Prepare
from hotshoe.layers.compressed import EntryIndexer
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.indexer import Asked, pack, unpack
from hotshoe.layers.rotary import Rotary
from hotshoe.layers.rows import RowLayer
from hotshoe.slots import (
    AttentionSpec,
    BlockIndexerOp,
    BlockIndexerSpec,
    CacheView,
    CompressSpec,
    StepShape,
    whole_step,
)
from hotshoe.slots.reference.compressed import places_of
from hotshoe.types.trees import NoTreesError


@dataclass(frozen=True, slots=True)
class _ChosenStep:
    """A step whose requests are another one's tokens.

    Attributes:
        prepared: What attention has prepared of it; it reads `table`, which every head overwrites.
        table: [num_tokens, blocks] int32.
        sources: [num_tokens, most blocks] int32, the table of each token's own request.
        last: [num_tokens, 1] int64, the column there of the block that a token lies in.
    """

    prepared: Any
    table: Tensor
    sources: Tensor
    last: Tensor


class _Keys(RowLayer):
    """The cache of the keys that blocks are chosen by."""

    def __init__(self, ctx: BuildContext, spec: BlockIndexerSpec) -> None:
        self.op: BlockIndexerOp = ctx.selector.choose("block_indexer", spec)
        super().__init__("index", spec.block_size, spec.row, ctx.device)
        self.planner: tuple[Hashable, Prepare] = (spec, self.op.prepare)
        ctx.cache_layers.append(self)


class _KeyHead(Attention):
    """One key head and its queries' heads. Called, it writes the cache and returns q, rotated."""

    def read(self, q: Tensor, batch: ForwardBatch) -> Tensor:
        """Leave that to `attend`."""
        return q

    def attend(self, q: Tensor, prepared: Any) -> Tensor:
        """Return [num_tokens, heads * value_dim] for q [num_tokens, heads, head_dim]."""
        return self._attend(q, self.cache, prepared, None)

    def plan(self, shape: StepShape, view: CacheView) -> Any:
        """Have a step prepared by the operation."""
        return self._attend.prepare(shape, view)


class BlockAttention:
    """One layer's attention to chosen blocks, between its projections.

    Args:
        ctx: The build context, where its caches are registered.
        spec: This rank's heads.
        index: How blocks are chosen: a head for each key head of this rank.
        rotary: The rotation of both.
        qk_norm, kv_scales: As for `Attention`.

    Raises:
        ConfigError: Blocks of tokens are no whole blocks of the cache.
        NoTreesError: Drafts are trees.
    """

    def __init__(
        self,
        ctx: BuildContext,
        spec: AttentionSpec,
        index: BlockIndexerSpec,
        rotary: Rotary,
        qk_norm: QkNorm | None = None,
        kv_scales: tuple[str, str] | None = None,
    ) -> None:
        _check(ctx, index)
        assert index.num_heads == spec.num_kv_heads and index.rope_dim == rotary.rotary_dim
        self.spec, self.index, self._cos_sin = spec, index, rotary.table
        self._keys = _Keys(ctx, index)
        self._group = spec.num_heads // spec.num_kv_heads
        one = replace(spec, num_heads=self._group, num_kv_heads=1)
        self._heads = [
            _KeyHead(ctx, one, rotary, qk_norm, kv_scales=kv_scales)
            for _ in range(spec.num_kv_heads)
        ]
        for head in self._heads:
            head.planner = (("blocks", *head.planner[:1], index), self._prepare)

    def __call__(self, qkv: Tensor, q: Tensor, key: Tensor, batch: ForwardBatch) -> Tensor:
        """Write the step's keys and values, choose, and attend.

        Args:
            qkv: [num_tokens, all channels of q, k and v], this rank's; overwritten.
            q: [num_tokens, index heads * head_dim], normed; overwritten.
            key: [num_tokens, head_dim] of the index, normed.
            batch: The step.

        Returns:
            [num_tokens, num_heads * head_dim].
        """
        slots, index = batch.views[self._keys.view].slot_mapping, self.index
        asked = q.view(len(q), index.num_heads, index.head_dim)
        place = (batch.positions, self._cos_sin, self._keys.cache, slots)
        turned = [self._keys.op.write(asked, key, *place).flatten(1)]
        for head, own in zip(self._heads, self._parts(qkv), strict=True):
            turned.append(head(own, batch).flatten(1))
        packed = torch.cat(turned, 1)
        if batch.between is not None:
            return batch.between(packed, self._read, self.spec.num_heads * self.spec.value_dim)
        return self._read(packed, batch.views)

    def _parts(self, qkv: Tensor) -> list[Tensor]:
        """Return q, k and v of each key head."""
        spec = self.spec
        kv_heads = spec.num_kv_heads
        sizes = [spec.num_heads * spec.head_dim, kv_heads * spec.head_dim]
        q, k, v = torch.split(qkv, [*sizes, kv_heads * spec.value_dim], 1)
        each = zip(*(part.chunk(kv_heads, 1) for part in (q, k, v)), strict=True)
        return [torch.cat(parts, 1) for parts in each]

    def _read(self, packed: Tensor, views: Sequence[CacheView]) -> Tensor:
        """Choose and attend, with what was joined of q of the index and of every key head."""
        index, dim = self.index, self.spec.head_dim
        sizes = [index.num_heads * index.head_dim, *[self._group * dim] * len(self._heads)]
        asked, *parts = torch.split(packed, sizes, 1)
        step = views[self._heads[0].view].prepared
        chosen: Tensor | None = None
        if isinstance(step, _ChosenStep):
            q = asked.reshape(-1, index.num_heads, index.head_dim)
            chosen = self._keys.op(q, self._keys.cache, views[self._keys.view].prepared)
        out = []
        for number, (head, q) in enumerate(zip(self._heads, parts, strict=True)):
            prepared = step
            if chosen is not None:
                _fill(step, chosen[:, number], index)
                prepared = step.prepared
            out.append(head.attend(q.reshape(-1, self._group, dim), prepared))
        return out[0] if len(out) == 1 else torch.cat(out, 1)

    def _prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Have a step prepared whose requests are this one's tokens, and read chosen blocks.

        A step whose queries see no more blocks than they may choose reads all of them, as it is.
        """
        index = self.index
        if shape.max_seq_len <= index.top_k * index.group:
            return self._heads[0].plan(shape, view)
        count = len(view.slot_mapping)
        requests, positions = places_of(whole_step(shape, view), count)
        pages = index.group // index.block_size
        device = view.slot_mapping.device
        table = torch.zeros((count, index.top_k * pages), dtype=torch.int32, device=device)
        whole = (positions // index.group).clamp(max=index.top_k - 1)
        lengths = (whole * index.group + positions % index.group + 1).int()
        starts = torch.arange(count + 1, dtype=torch.int32, device=device)
        step = StepShape(count, starts, lengths, 1, index.top_k * index.group)
        prepared = self._heads[0].plan(step, CacheView(table, view.slot_mapping))
        last = (positions // index.block_size)[:, None]
        return _ChosenStep(prepared, table, view.block_table[requests], last)


class GroupAttention:
    """One layer's attention to chosen groups of tokens, all of whose heads read the same: the best
    groups of those that are complete, and the tokens behind these up to the query itself.

    Args:
        ctx: The build context, where its cache is registered.
        spec: This rank's heads.
        indexer: Chooses groups by their entries.
        rotary, qk_norm, kv_scales: As for `Attention`.

    Raises:
        ConfigError: Groups of tokens are no whole blocks of the cache.
        NoTreesError: Drafts are trees.
    """

    def __init__(
        self,
        ctx: BuildContext,
        spec: AttentionSpec,
        indexer: EntryIndexer,
        rotary: Rotary,
        qk_norm: QkNorm | None = None,
        kv_scales: tuple[str, str] | None = None,
    ) -> None:
        self._group, self._indexer = indexer.compressor.spec, indexer
        _check(ctx, self._group)
        self.spec, self._top_k = spec, indexer.spec.top_k
        self._heads = _KeyHead(ctx, spec, rotary, qk_norm, kv_scales=kv_scales)
        self._heads.planner = (("groups", *self._heads.planner[:1], indexer.spec), self._prepare)

    def __call__(self, qkv: Tensor, asked: Asked, batch: ForwardBatch) -> Tensor:
        """Write the step's keys and values, choose, and attend.

        Args:
            qkv: [num_tokens, all channels of q, k and v], this rank's; overwritten.
            asked: Queries of the indexer; its compressor has the step's rows.
            batch: The step.

        Returns:
            [num_tokens, num_heads * head_dim].
        """
        q = self._heads(qkv, batch).view(len(qkv), self.spec.num_heads, self.spec.head_dim)
        if batch.between is not None:
            size = self.spec.num_heads * self.spec.value_dim
            return batch.between(pack(q, asked), self._read, size)
        return self._attend(q, asked, batch.views)

    def _read(self, packed: Tensor, views: Sequence[CacheView]) -> Tensor:
        """Attend with the tensors that two pieces of a recorded step hand over."""
        heads = (self.spec.num_heads, self.spec.head_dim)
        return self._attend(*unpack(packed, heads, self._indexer.spec), views)

    def _attend(self, q: Tensor, asked: Asked, views: Sequence[CacheView]) -> Tensor:
        compressor = self._indexer.compressor
        compressor.complete(views)
        step = views[self._heads.view].prepared
        if not isinstance(step, _ChosenStep):
            return self._heads.attend(q, step)
        found = self._indexer.choose(asked, views)
        *_, positions = views[compressor.entries.view].prepared
        own = ((positions + 1) // self._group.group).int()  # it stands behind all that are complete
        _fill(step, torch.cat((found, own[:, None]), 1), self._group)
        return self._heads.attend(q, step.prepared)

    def _prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Have a step prepared as `BlockAttention` does; the last group is one more."""
        group, most = self._group.group, self._top_k
        if shape.max_seq_len // group <= most:
            return self._heads.plan(shape, view)
        count, device = len(view.slot_mapping), view.slot_mapping.device
        requests, positions = places_of(whole_step(shape, view), count)
        pages, seen = group // self._group.block_size, positions + 1
        table = torch.zeros((count, (most + 1) * pages), dtype=torch.int32, device=device)
        lengths = ((seen // group).clamp(max=most) * group + seen % group).int()
        starts = torch.arange(count + 1, dtype=torch.int32, device=device)
        step = StepShape(count, starts, lengths, 1, (most + 1) * group)
        prepared = self._heads.plan(step, CacheView(table, view.slot_mapping))
        last = (positions // self._group.block_size)[:, None]
        return _ChosenStep(prepared, table, view.block_table[requests], last)


def _fill(step: _ChosenStep, chosen: Tensor, index: BlockIndexerSpec | CompressSpec) -> None:
    """Write into a step's table the blocks of the cache that hold the chosen ones, in order.

    The query completes or has begun the last one, so the others are whole. Places behind the query
    name its own block, and are not read.

    Args:
        step: The step.
        chosen: [num_tokens, count] int32, -1 for none.
        index: The sizes.
    """
    pages = index.group // index.block_size
    ordered = torch.where(chosen < 0, step.sources.shape[1], chosen.long()).sort(1).values
    columns = ordered[..., None] * pages + torch.arange(pages, device=chosen.device)
    step.table.copy_(step.sources.gather(1, torch.minimum(columns.flatten(1), step.last)))


def _check(ctx: BuildContext, index: BlockIndexerSpec | CompressSpec) -> None:
    if index.group % index.block_size:
        divisor = math.gcd(index.group, index.block_size)
        raise ConfigError(
            f"block_size {index.block_size}: layers choose blocks of {index.group} tokens, which "
            f"have to be whole blocks of the cache; use --block-size {divisor}"
        )
    if ctx.tree is not None:
        raise NoTreesError(
            "the model has layers that choose blocks of tokens, where the nodes of a tree have no "
            "places"
        )
