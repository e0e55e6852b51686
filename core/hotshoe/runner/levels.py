"""Heads with layers of their own whose drafts are trees: a tree is drafted level by level.

Behind a step the head reads the accepted path alone, as a chain of tokens, so that its caches hold
what they would hold without trees. Then it computes one level after the other. The nodes of all
levels lie one behind the other in the places behind the path, and each sees the known tokens, its
ancestors and itself. Leaves are guessed, and not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotshoe.layers import ForwardBatch
from hotshoe.models.base import DeepHead, DraftHead, LevelHead, ReadingHead
from hotshoe.runner.ahead import CHAINED_ROWS, NO_DRAFT, Ahead, Behind, Samples, Tables
from hotshoe.runner.deep import DeepAhead
from hotshoe.runner.graphs import Recordings
from hotshoe.runner.reading import ReadingAhead
from hotshoe.runner.rows import Indexes, Ints, StepInputs
from hotshoe.runner.trees import Shape, TreeAhead
from hotshoe.sampling.rows import place
from hotshoe.slots import CacheView, StepShape, TreeNodes
from hotshoe.types.trees import ROOT, DraftTree, ancestors_of, depths_of


def ahead_of(head: DraftHead, tables: Tables, tree: DraftTree | None) -> Ahead:
    """Return what runs a head."""
    if isinstance(head, ReadingHead):
        return ReadingAhead(head, tables)
    if tree is None:
        if isinstance(head, DeepHead) and head.following:
            return DeepAhead(head, tables)
        return Ahead(head, tables)
    return (
        LevelAhead(head, tables, tree) if isinstance(head, LevelHead) else TreeAhead(head, tables)
    )


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth, and those of them that are computed because they have children.

    Attributes:
        nodes: Their numbers in the tree.
        parents, choices: Of each, its parent's place among those computed one level before, and
            which of the parent's likeliest tokens it is.
        computed: Places of the computed ones among `nodes`.
        depth: Of them, from 1 on.
        first: How many nodes of earlier levels are computed.
        lines: Of each computed one, by bits, its ancestors among all that are computed.
    """

    nodes: Indexes
    parents: Indexes
    choices: Indexes
    computed: Indexes
    depth: int
    first: int
    lines: Indexes


def levels_of(tree: DraftTree) -> list[Level]:
    """Split a tree into its levels."""
    parents = tree.parents
    depths = np.array(depths_of(parents))
    inner = sorted(set(parents) - {ROOT}, key=lambda node: (depths[node], node))
    number = {node: i for i, node in enumerate(inner)}
    masks = ancestors_of([number.get(parents[node], ROOT) for node in inner])
    lines = np.array(masks, np.uint64).view(np.int64)
    found, before = list[Level](), [ROOT]
    for depth in range(1, tree.depth + 1):
        nodes = np.flatnonzero(depths == depth)
        own = [node for node in nodes.tolist() if node in number]
        first = number[own[0]] if own else len(inner)
        found.append(
            Level(
                nodes,
                np.array([before.index(parents[node]) for node in nodes], np.int64),
                np.array([tree.paths[node][-1] for node in nodes], np.int64),
                np.searchsorted(nodes, own),
                depth,
                first,
                lines[first : first + len(own)],
            )
        )
        before = own
    return found


class Roots(NamedTuple):
    """What trees grow from, [r] each.

    Attributes:
        rows, limit: int64, and the places of each row in blocks that it holds.
        passed, found: What the head made of the last token of each row that is right.
        positions: int64, its position.
    """

    rows: Tensor
    limit: Tensor
    passed: Tensor
    found: Tensor
    positions: Tensor

    def first(self, count: int) -> Roots:
        """Return those of so many rows."""
        return Roots(*(tensor[:count] for tensor in self))


class LevelAhead(TreeAhead):
    """See `Ahead`. The head guesses several tokens behind each node.

    Args:
        head: Loaded, with its caches.
        tables: What it shares with the runner.
        tree: The shape of its drafts.
    """

    _head: LevelHead

    def __init__(self, head: LevelHead, tables: Tables, tree: DraftTree) -> None:
        super().__init__(head, tables)
        self._levels, self._size = levels_of(tree), len(tree.paths)
        device = tables.tokens.device
        arrays = [(v.nodes, v.parents, v.choices, v.computed, v.lines) for v in self._levels]
        self._indexes = [[place(array, device) for array in level] for level in arrays]
        self._roots: Roots | None = None  # at fixed addresses, for recordings

    def warm_up(self) -> None:
        assert self._states is not None and self._batch is not None
        tokens = self._tables.tokens
        ids = tokens.new_zeros(len(self._states))
        last = torch.full((1,), len(ids) - 1, device=tokens.device)
        found = self._head.forward(ids, self._states, replace(self._batch, outputs_at=last))
        # Of rows without blocks, which compute nobody's tokens.
        count = len(self._tables.blocks[0])
        rows, none = last.new_full((count,), count - 1), last.new_zeros(count)
        passed, out = (t.expand(count, *t.shape[1:]).clone() for t in found)
        self._roots = self._roots or Roots(rows, none, passed, out, none.clone())
        self._grown(self._roots.first(1), 1)
        self._states = self._batch = None

    def record(
        self, record: Callable[[Callable[[], Tensor]], Callable[[], Tensor]], sizes: Sequence[int]
    ) -> None:
        """Record the levels of trees for numbers of rows; warmed up. Arguments as of `Ahead`."""
        assert self._roots is not None
        sizes = [size for size in sizes if size <= CHAINED_ROWS]
        self._steps = [Recordings(sizes)]
        for size in reversed(sizes):
            own, longest = self._roots.first(size), self._tables.max_model_len
            self._steps[0].keep(size, record(partial(self._grown, own, longest)))

    def _behind(
        self,
        inputs: StepInputs,
        samples: Samples,
        token_index: Tensor,
        verified: Tensor | None,
        sampled: Tensor,
    ) -> Behind:
        if not self._parents:
            return super()._behind(inputs, samples, token_index, verified, sampled)
        assert self._states is not None and self._batch is not None
        device, path = sampled.device, self._accepted(samples, sampled)
        step = self._straight(inputs, samples)
        source, roots, at, row, depth, slots = (
            place(array, device)
            for array in (step.source, step.roots, step.at, step.row, step.depth, step.slots)
        )
        there = depth <= path.depth[row]
        sample = path.line[row, (path.depth[row] - depth).clamp(min=0)]
        ids = self._tables.tokens[token_index[source] + 1]
        ids[roots] = sampled[path.first].to(ids.dtype)
        ids[at] = sampled[sample].to(ids.dtype)
        first = place(samples.tokens.astype(np.int64), device)
        source[at] = first[row] + sample - path.first[row]
        positions = place(step.positions, device)
        old = {
            plan.group: view
            for plan, view in zip(self._tables.plans, self._batch.views, strict=True)
        }

        def view(group: int) -> CacheView:
            mapping = old[group].slot_mapping[slots]
            mapping[at] = mapping[at].where(there, self._null_slots[group])
            return CacheView(old[group].block_table, mapping)

        shape = StepShape(
            len(step.counts),
            place(np.concatenate(([0], step.counts.cumsum())).astype(np.int32), device),
            place(step.lengths, device),
            int(step.counts.max()),
            int(step.lengths.max()),
            (step.counts.tolist(), step.lengths.tolist()),
        )
        batch = ForwardBatch(positions, shape, self._views_of(shape, view))
        known = place(samples.positions.astype(np.int64), device)
        last, behind = roots + path.depth, known + path.depth
        return Behind(ids, self._states[source], batch, last, behind)

    def _straight(self, inputs: StepInputs, samples: Samples) -> Straight:
        """Lay out a step's tokens with a path of each row in the place of its tree."""
        counts = np.diff(inputs.query_start_loc)
        deepest = np.zeros(len(inputs.rows), np.int64)
        dropped = np.zeros_like(deepest)
        request = {row: i for i, row in enumerate(inputs.rows.tolist())}
        own = np.array([request[row] for row in samples.rows.tolist()], np.int64)
        for i, row in zip(own.tolist(), samples.rows.tolist(), strict=True):
            count = len(self._drafts.get(row, ()))
            parents = tuple(self._parents.get(row, range(-1, count - 1)))
            deepest[i], dropped[i] = Shape.of(parents).depths.max(), count
        kept = counts - dropped
        new = (kept + deepest).astype(np.int32)
        starts = np.concatenate(([0], new.cumsum()))
        source = np.concatenate(
            [
                np.minimum(np.arange(n) + begin, begin + most - 1)
                for n, begin, most in zip(new, inputs.query_start_loc, kept, strict=False)
            ]
        ).astype(np.int64)
        roots = (starts[:-1] + kept - 1)[own]
        row = np.repeat(np.arange(len(own)), deepest[own])
        before = np.cumsum(deepest[own]) - deepest[own]
        depth = np.arange(len(row)) - before[row] + 1
        at, slots, positions = roots[row] + depth, source.copy(), inputs.positions[source]
        slots[at] += depth
        positions[at] += depth.astype(np.int32)
        lengths = (inputs.seq_lens - dropped + deepest).astype(np.int32)
        return Straight(new, lengths, positions, source, slots, roots, at, row, depth)

    def _go_on(
        self, rows: Ints, passed: Tensor, found: Tensor, positions: Tensor, longest: int
    ) -> Tensor:
        own = place(rows.astype(np.int64), positions.device)
        given = Roots(own, self._limits(rows), passed, found, positions)
        size = self._steps[0].size_for(len(rows))
        if size is None or self._roots is None:
            return self._grown(given, longest)
        for held_there, tensor in zip(self._roots.first(len(rows)), given, strict=True):
            held_there.copy_(tensor)
        self._roots.limit[len(rows) : size].zero_()  # nobody's rows have no room
        return self._steps[0].replay(size)[: len(rows)].clone()

    def _grown(self, roots: Roots, longest: int) -> Tensor:
        """Return the nodes of each row's tree [r, nodes] int32; no place is beyond `longest`."""
        rows, limit, passed, found, positions = roots
        device, count = positions.device, len(rows)
        made = torch.full((count, self._size), NO_DRAFT, dtype=torch.int32, device=device)
        has_room = torch.ones(count, dtype=torch.bool, device=device)
        passed, found = passed[:, None], found[:, None]
        for level, indexes in zip(self._levels, self._indexes, strict=True):
            nodes, parents, choices, computed, lines = indexes
            width = int(level.choices.max()) + 1
            best = self._head.likeliest(found.flatten(0, 1), width).view(count, -1, width)
            tokens = best[:, parents, choices].to(torch.int32)
            made[:, nodes] = tokens.where(has_room[:, None], NO_DRAFT)
            if not len(level.computed):
                break
            end = positions + 1 + level.first + len(level.computed)
            has_room = has_room & (end <= limit)
            batch = self._level(level, lines, rows, positions, has_room, longest)
            above = passed[:, parents[computed]].flatten(0, 1)
            on, out = self._head.forward(tokens[:, computed].flatten(), above, batch)
            passed, found = on.view(count, -1, on.shape[1]), out.view(count, -1, out.shape[1])
        return made

    def _level(
        self,
        level: Level,
        lines: Tensor,
        rows: Tensor,
        positions: Tensor,
        has_room: Tensor,
        longest: int,
    ) -> ForwardBatch:
        """Describe a step of one level's nodes; a row without room computes nobody's tokens.

        Args:
            level, lines: Which nodes.
            rows, positions, has_room: [r] of each row, the position of its last known token, and
                whether blocks are held for the nodes.
            longest: No place is beyond.
        """
        tables, count, each = self._tables, len(rows), len(level.computed)
        size, device = tables.block_size, rows.device
        known = (positions + 1).where(has_room, 0)
        longest = max(min(longest, tables.max_model_len), level.first + each)
        places = known[:, None] + level.first + torch.arange(each, device=device)
        shape = StepShape(
            count,
            torch.arange(0, count * each + 1, each, dtype=torch.int32, device=device),
            (known + level.first + each).to(torch.int32),
            each,
            longest,
            tree=TreeNodes(
                torch.full((count,), level.first + each, dtype=torch.int32, device=device),
                lines.repeat(count),
            ),
        )

        def view(group: int) -> CacheView:
            blocks = tables.blocks[group]
            slots = blocks[rows[:, None], places // size] * size + places % size
            slots = slots.where(has_room[:, None], self._null_slots[group]).to(torch.int32)
            table = blocks[:, : -(-longest // size)].index_select(0, rows)
            return CacheView(table, slots.flatten())

        own = (known + level.depth - 1).to(torch.int32)
        return ForwardBatch(own.repeat_interleave(each), shape, self._views_of(shape, view))


@dataclass(frozen=True, slots=True)
class Straight:
    """A step whose trees have given way to paths; r rows sample, and p tokens are of paths.

    Attributes:
        counts, lengths: Of each request, its tokens of the step, and all of them.
        positions, source, slots: Of each token, its position; the token of the step whose state it
            has, the root's where that is not known yet; and the one whose place it takes.
        roots: [r] the token that each row's path follows.
        at, row, depth: [p] the tokens of paths, which of the rows that sample they are of, and
            their depth from 1 on.
    """

    counts: Ints
    lengths: Ints
    positions: Ints
    source: Indexes
    slots: Indexes
    roots: Indexes
    at: Indexes
    row: Indexes
    depth: Indexes
