"""Attention to a window of tokens and to compressed entries, each over a cache of its own.

What an entry is made of lies in a third cache, a window of the last tokens of groups. So every step
may begin and end within a group, and nothing is carried on but blocks, which may be shared, dropped
and computed again as any others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.layers.cache import Prepare
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.indexer import Asked, pack, unpack
from hotshoe.layers.rotary import Rotary
from hotshoe.layers.rows import RowLayer
from hotshoe.layers.split import Section
from hotshoe.layers.weights import Place
from hotshoe.slots import (
    CacheView,
    CompressedAttentionOp,
    CompressedAttentionSpec,
    CompressOp,
    CompressSpec,
    IndexerOp,
    IndexerSpec,
    StepShape,
    renewed,
    whole_step,
)
from hotshoe.slots.reference.compressed import places_of
from hotshoe.types.cache import CacheKind
from hotshoe.types.rows import RowForm


@dataclass(frozen=True, slots=True)
class CompressorNames:
    """Checkpoint names of a compressor's small weights.

    Attributes:
        bias: Of gates; None for 0.
        norm: None where it has no norm.
        read_norm: Makes the norm's weight of the tensor.
    """

    bias: str | None
    norm: str | None
    read_norm: Callable[[Tensor], Tensor] | None = None


class _Cache(RowLayer):
    """A cache without an operation of its own; the layer that has it registers it."""

    def __init__(
        self,
        ctx: BuildContext,
        row: RowForm,
        plan: tuple[Hashable, Prepare],
        window: int | None = None,
        group: int = 1,
    ) -> None:
        if window is not None and window >= ctx.max_model_len:
            window = None  # which drops nothing
        kind: CacheKind = "latent" if window is None else "window"
        super().__init__(kind, ctx.block_size, row, ctx.device, window=window, group=group)
        self.planner = plan
        ctx.cache_layers.append(self)


class Compressor:
    """Makes entries of the rows of tokens, for attention or for an indexer.

    Args:
        ctx: The build context, where its two caches are registered.
        spec: Sizes and types.
        rotary: The rotation of entries, over `rope_dim` channels.
        names: Of the small weights.
        plan: Of a step over the entries: what reads them prepares it.

    Attributes:
        spec: The specification.
        entries: The cache of entries.
    """

    def __init__(
        self,
        ctx: BuildContext,
        spec: CompressSpec,
        rotary: Rotary,
        names: CompressorNames,
        plan: tuple[Hashable, Prepare],
    ) -> None:
        assert rotary.rotary_dim == spec.rope_dim and rotary.interleaved
        assert (names.norm is None) == (spec.norm_eps is None)
        self.spec = spec
        self._op: CompressOp = ctx.selector.choose("compress", spec)
        self._cos_sin = rotary.table
        self._tokens = _Cache(ctx, spec.token_row, ("rows", whole_step), spec.reach)
        self.entries = _Cache(ctx, spec.row, plan, group=spec.group)
        self._held: dict[str, Tensor] = {}
        holder = ctx.holder("compress", spec, ctx.dtype, self)
        self._take("bias", torch.zeros((spec.group, spec.channels), device=ctx.device))
        shape, place = (spec.group, spec.channels), Place(holder, "bias", (0, spec.group), ())
        if names.bias is not None:
            ctx.weights.expect(names.bias, shape, partial(self._take, "bias"), place=place)
        if names.norm is not None:
            self._take("norm", torch.ones(spec.head_dim, dtype=ctx.torch_dtype, device=ctx.device))
            sink = partial(self._take_norm, names.read_norm)
            ctx.expect_alone(holder, f"{names.norm}.weight", spec.head_dim, sink, "norm")

    def _take_norm(self, read: Callable[[Tensor], Tensor] | None, tensor: Tensor) -> None:
        self._take("norm", tensor if read is None else read(tensor))

    def _take(self, part: str, tensor: Tensor) -> None:
        known = self._held.get(part)
        fresh = tensor if known is None else tensor.to(known, copy=True)
        self._held[part] = renewed(known, fresh)

    def state(self) -> dict[str, Tensor]:
        """Return the bias [group, channels] float32, and the weight [head_dim] of a norm."""
        return self._held

    def write(self, rows: Tensor, batch: ForwardBatch) -> None:
        """Write what tokens bring: rows [num_tokens, 2 * channels], values, then gates."""
        self._op.write(rows, self._tokens.cache, batch.views[self._tokens.view].slot_mapping)

    def turn(self, q: Tensor, positions: Tensor) -> Tensor:
        """Rotate q [num_tokens, heads, head_dim] as entries are."""
        return self._op.turn(q, positions, self._cos_sin)

    def complete(self, views: Sequence[CacheView]) -> None:
        """Make the entries of the groups that the step completes."""
        own = views[self.entries.view]
        step = views[self._tokens.view].prepared
        rest = (self._held["bias"], self._held.get("norm"), self._cos_sin)
        entries = replace(step, block_table=own.block_table, slot_mapping=own.slot_mapping)
        self._op(self._tokens.cache, self.entries.cache, (step, entries), *rest)


class EntryIndexer:
    """The choice among entries, by slot `indexer`: entries are what it calls tokens.

    Every query is a request of its own there, which sees the entries of whole groups up to itself.

    Args:
        ctx: The build context.
        spec: Heads and the number to choose; of `head_dim` channels `rope_dim` are rotated.
        compressor: Sizes of the entries.
        rotary, names: Of the compressor.

    Attributes:
        group: Tokens that an entry stands for.
    """

    def __init__(
        self,
        ctx: BuildContext,
        spec: IndexerSpec,
        compressor: CompressSpec,
        rotary: Rotary,
        names: CompressorNames,
    ) -> None:
        self.spec = spec
        self._op: IndexerOp = ctx.selector.choose("indexer", spec)
        self.group = compressor.group
        self._every = max(1, compressor.group // compressor.block_size)
        self.compressor = Compressor(ctx, compressor, rotary, names, (spec, self._prepare))

    def ask(self, q: Tensor, weights: Tensor, batch: ForwardBatch) -> Asked:
        """Rotate q [num_tokens, num_heads * head_dim], and return what `choose` takes."""
        heads = q.view(len(q), self.spec.num_heads, self.spec.head_dim)
        return Asked(self.compressor.turn(heads, batch.positions), weights)

    def choose(self, asked: Asked, views: Sequence[CacheView]) -> Tensor:
        """Return [num_tokens, top_k] int32, the entries that queries read, -1 for none."""
        prepared, none, _ = views[self.compressor.entries.view].prepared
        cache = self.compressor.entries.cache
        chosen: Tensor = self._op(asked.q, asked.weights, cache, prepared)
        return chosen.masked_fill_(none[:, None], -1)

    def _prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Have a step prepared whose requests are this one's tokens; say which see no entry, and
        where all are in their sequences."""
        count = len(view.slot_mapping)
        requests, positions = places_of(whole_step(shape, view), count)
        seen = (positions + 1) // self.group
        table = view.block_table[requests, self._every - 1 :: self._every]
        table = view.block_table[requests] if not table.shape[1] else table.contiguous()
        none = seen == 0
        # One that sees none is made to see one, in a block that its request has.
        table[:, 0] = torch.where(none, view.block_table[requests, 0], table[:, 0])
        starts = torch.arange(count + 1, dtype=torch.int32, device=table.device)
        lengths = seen.clamp(min=1).int()
        most = max(1, shape.max_seq_len // self.group)
        step = StepShape(count, starts, lengths, 1, most)
        return self._op.prepare(step, CacheView(table, view.slot_mapping)), none, positions


class GroupIndexer:
    """The choice of tokens by whole groups: those of the best entries, and those up to the query
    itself of the group that it has not completed.

    Args:
        ctx, spec, compressor, rotary: As for `EntryIndexer`; entries are not normed.
        bias: Checkpoint name of the bias of gates.

    Attributes are those of `Chooser`.
    """

    chosen: Tensor

    def __init__(
        self,
        ctx: BuildContext,
        spec: IndexerSpec,
        compressor: CompressSpec,
        rotary: Rotary,
        bias: str,
    ) -> None:
        names = CompressorNames(bias, None)
        self._entries = EntryIndexer(ctx, spec, compressor, rotary, names)
        self.spec, self._group = spec, compressor.group
        self.top_k = (spec.top_k + 1) * self._group

    def write(self, q: Tensor, key: Tensor, weights: Tensor, batch: ForwardBatch) -> Asked:
        """See `Chooser`; key is [num_tokens, 2 * head_dim], keys, then gates."""
        self._entries.compressor.write(key, batch)
        return self._entries.ask(q, weights, batch)

    def choose(self, asked: Asked, views: Sequence[CacheView]) -> None:
        """See `Chooser`."""
        self._entries.compressor.complete(views)
        found = self._entries.choose(asked, views)
        *_, positions = views[self._entries.compressor.entries.view].prepared
        # The query's own group goes behind those that were chosen: nothing stands behind a gap.
        own = ((positions + 1) // self._group)[:, None]
        groups = functional.pad(found, (0, 1), value=-1)
        groups.scatter_(1, own.clamp(max=found.shape[1]), own.int())
        places = torch.arange(self._group, dtype=torch.int32, device=groups.device)
        tokens = groups[..., None] * self._group + places
        seen = (tokens >= 0) & (tokens <= positions[:, None, None])
        self.chosen = torch.where(seen, tokens, -1).flatten(1)


class CompressedAttention:
    """One layer's attention between its projections.

    Args:
        ctx: The build context, where its caches are registered.
        spec: The model's heads; `num_heads` is divided among the ranks.
        rotary: The rotation, over `rope_dim` channels.
        sinks: Checkpoint name of the heads' logits.
        compress: Makes its compressor, given the plan of a step over entries; None for a window
            alone.
        indexer: Chooses entries; None where a query sees all.

    Raises:
        ConfigError: The heads cannot be divided among the ranks.
    """

    def __init__(
        self,
        ctx: BuildContext,
        spec: CompressedAttentionSpec,
        rotary: Rotary,
        sinks: str,
        compress: Callable[[tuple[Hashable, Prepare]], Compressor] | None = None,
        indexer: EntryIndexer | None = None,
    ) -> None:
        assert rotary.rotary_dim == spec.rope_dim and rotary.interleaved
        self._split = ctx.split("attention heads", Section(spec.num_heads))
        self.spec = spec = replace(spec, num_heads=self._split.size)
        self._op: CompressedAttentionOp = ctx.selector.choose("compressed_attention", spec)
        plan: tuple[Hashable, Prepare] = (spec, self._op.prepare)
        self._window = _Cache(ctx, spec.row, plan, spec.window)
        self.compressor = None if compress is None else compress(plan)
        self._indexer, self._cos_sin = indexer, rotary.table
        self._sinks = torch.zeros(spec.num_heads, device=ctx.device)
        holder = ctx.holder("compressed_attention", spec, "float32", self)
        place = Place(holder, "sinks", (0, spec.num_heads), ())
        ctx.weights.expect(sinks, (spec.num_heads * ctx.size,), self._take, place=place)

    def _take(self, sinks: Tensor) -> None:
        [own] = self._split.within(0, len(sinks))
        self._sinks = renewed(self._sinks, sinks[own].to(self._sinks, copy=True))

    def state(self) -> dict[str, Tensor]:
        """Return the logits [num_heads] of this rank."""
        return {"sinks": self._sinks}

    def __call__(
        self, q: Tensor, row: Tensor, batch: ForwardBatch, asked: Asked | None = None
    ) -> Tensor:
        """Write the step's rows, and attend; compressors have theirs.

        Args:
            q: [num_tokens, num_heads, head_dim], this rank's heads, normed.
            row: [num_tokens, head_dim], normed.
            batch: The step.
            asked: What the indexer chooses by.

        Returns:
            [num_tokens, num_heads * head_dim].
        """
        slots = batch.views[self._window.view].slot_mapping
        place = (batch.positions, self._cos_sin, self._window.cache, slots)
        turned = self._op.write(q, row, *place)
        if batch.between is not None:
            packed = turned if asked is None else pack(turned, asked)
            return batch.between(packed, self._read, math.prod(turned.shape[1:]))
        return self._attend(turned, asked, batch.views)

    def _read(self, packed: Tensor, views: Sequence[CacheView]) -> Tensor:
        """Attend with what was handed over between two pieces of a recorded step."""
        if self._indexer is None:
            return self._attend(packed, None, views)
        heads = (self.spec.num_heads, self.spec.head_dim)
        return self._attend(*unpack(packed, heads, self._indexer.spec), views)

    def _attend(self, q: Tensor, asked: Asked | None, views: Sequence[CacheView]) -> Tensor:
        entries: tuple[Tensor, Any, Tensor | None] | None = None
        if self.compressor is not None:
            self.compressor.complete(views)
            chosen = None
            if self._indexer is not None and asked is not None:
                self._indexer.compressor.complete(views)
                chosen = self._indexer.choose(asked, views)
            held = self.compressor.entries
            entries = (held.cache, views[held.view].prepared, chosen)
        prepared = views[self._window.view].prepared
        return self._op(q, self._window.cache, prepared, entries, self._sinks, self._cos_sin)
