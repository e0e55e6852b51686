"""Runs a draft head behind the steps of its model: fills its caches, and makes the next drafts.

A head is a further layer, whose caches share block tables with those of the model. Behind every
step it computes the positions that the step computed, with the tokens behind them, which are known
by then: those of a prompt, accepted drafts, and what was sampled last. So whatever holds of the
model's caches at a position (chunks, prefixes, preemption, refused drafts) holds of the head's.
Where drafts are wanted, it goes on alone, one token of each row at a time, as far as the row's
blocks reach. It writes behind the known tokens there; the next step writes these places again.
Where none are wanted, it writes its caches and reads nothing; steps that decode the same rows one
after the other are written together.

The last position of a cached prefix is the one exception: its block was filled by a sequence that
may have gone on with another token. A head reads a little of that in its place, which costs drafts
and no token. Nothing here waits for the device: it finds itself how many drafts were accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotshoe.layers import ForwardBatch, ViewPlan
from hotshoe.layers.cache import CacheLayer
from hotshoe.layers.context import Attend
from hotshoe.models.base import DraftHead
from hotshoe.runner.graphs import Recordings
from hotshoe.runner.later import ROWS, Later
from hotshoe.runner.rows import Indexes, Ints, StepInputs
from hotshoe.sampling.rows import place
from hotshoe.slots import CacheView, StepShape
from hotshoe.types import StepPlan, StepResult

#: In the place of a draft for which a row has no block.
NO_DRAFT = -1
#: Chains of more rows are not recorded: drafts seldom pay there, and each recording takes a while.
CHAINED_ROWS = 64


@dataclass(frozen=True, slots=True)
class MadeDrafts:
    """Drafts behind a step: [rows, at most `StepPlan.num_ahead`] int32, `NO_DRAFT` behind them."""

    rows: Sequence[int]
    tokens: Tensor

    def book(self, result: StepResult, tokens: Tensor) -> None:
        """Put the host form of the drafts into a step's result."""
        for row, drafts in zip(self.rows, tokens.tolist(), strict=True):
            end = drafts.index(NO_DRAFT) if NO_DRAFT in drafts else len(drafts)
            result.ahead[row] = drafts[:end]


@dataclass(frozen=True, slots=True)
class Tables:
    """What a model, its head and the runner share.

    Attributes:
        tokens: Flat, all tokens known of each row.
        blocks: [rows + 1, max_blocks] of each cache group.
        null_slots: [groups] where a token is written that nobody reads.
        plans: Of all views of the model and the head.
        block_size, max_model_len: As in `RunnerLimits`.
    """

    tokens: Tensor
    blocks: Sequence[Tensor]
    null_slots: Ints
    plans: Sequence[ViewPlan]
    block_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Samples:
    """Where the rows of a step sample; r rows with at most k - 1 drafts.

    Attributes:
        rows: [r].
        at: [r, k] indexes of each row's samples, the last one repeated.
        drafted: [r, k] whether a draft was verified by the sample.
        tokens: [r] index in the step of the token that each row's first sample follows.
        positions: [r] its position.
    """

    rows: Ints
    at: Indexes
    drafted: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    tokens: Indexes
    positions: Indexes


class Behind(NamedTuple):
    """What a head reads behind a step.

    Attributes:
        ids, states: [n] the token behind each token, and what the model made of it.
        batch: Those tokens.
        last, positions: [r] the last token of each row that samples that is right: its index among
            them, and its position.
    """

    ids: Tensor
    states: Tensor
    batch: ForwardBatch
    last: Tensor
    positions: Tensor


class Chain(NamedTuple):
    """What a chain's next step reads, at fixed addresses; see `Ahead._begin_chain`."""

    tokens: Tensor
    passed: Tensor
    positions: Tensor
    limit: Tensor
    rows: Tensor

    @classmethod
    def of(cls, passed: Tensor, rows: int) -> Chain:
        """Make room for so many rows; all are the last one, without room for a draft."""
        count, device = rows, passed.device
        nowhere = torch.zeros(count, dtype=torch.int64, device=device)
        last = torch.full((count,), rows - 1, dtype=torch.int64, device=device)
        tokens = torch.zeros(count, dtype=torch.int32, device=device)
        room = passed.new_zeros(count, *passed.shape[1:])
        return cls(tokens, room, nowhere, nowhere.clone(), last)


class Ahead:
    """One head behind one runner.

    Args:
        head: Loaded, with its caches.
        tables: What it shares with the runner.
    """

    #: Whether each draft stands one position behind the one before.
    _advances = True
    #: How many steps of a chain differ, so that each is recorded.
    _kinds = 1

    def __init__(self, head: DraftHead, tables: Tables) -> None:
        self._head, self._tables = head, tables
        self._views = frozenset(layer.view for layer in self._layers())
        self._groups = sorted({tables.plans[number].group for number in self._views})
        groups, rows = len(tables.blocks), len(tables.blocks[0])
        self._columns = np.zeros((groups, rows), np.int32)
        self._null_slots = place(tables.null_slots, tables.tokens.device)
        self._num = 0
        self._steps = [Recordings(())]
        self._chain: Chain | None = None
        self._states: Tensor | None = None
        self._batch: ForwardBatch | None = None
        self._later: Later | None = None
        self._rows: list[int] = []
        # Whether the step may be written later: it decodes, and nobody wants drafts.
        self._waits = False

    def _layers(self) -> Sequence[CacheLayer]:
        """Return the layers whose caches the head reads."""
        return self._head.cache_layers

    def begin(self, plan: StepPlan) -> None:
        """Learn how many drafts a step shall have, and how far its rows' blocks reach."""
        self._num = plan.num_ahead
        decodes = plan.num_tokens == len(plan.rows) <= ROWS and not plan.new_rows
        self._waits = self._later is not None and decodes and not plan.num_ahead
        # Blocks change hands only where a row ends. What it has left is written before.
        if not self._waits or plan.rows != self._rows:
            self._write_up()
        self._rows = plan.rows
        for new in plan.new_rows:
            self._columns[:, new.row] = [len(blocks) for blocks in new.block_ids]
        ends = np.array(plan.block_cols, np.int32) + 1
        np.maximum.at(self._columns, (plan.block_groups, plan.block_rows), ends)

    def slots(self, positions: Tensor, slot_mapping: Tensor) -> ForwardBatch | None:
        """Describe a step that decodes, as far as writing it later needs; None where it does not.

        Args:
            positions: [n].
            slot_mapping: [groups * n].
        """
        if not self._waits:
            return None
        rows = slot_mapping.view(len(self._tables.blocks), len(positions))
        nothing = self._null_slots  # stands for what nobody reads
        views = [CacheView(nothing, rows[plan.group]) for plan in self._tables.plans]
        return ForwardBatch(positions, StepShape(1, nothing, nothing, 1, 1), views)

    def keep(self, states: Tensor, batch: ForwardBatch) -> None:
        """Take what the model made of every token of a step, until it has sampled."""
        self._states, self._batch = states, replace(batch, outputs_at=None, between=None)

    def __call__(
        self, inputs: StepInputs, token_index: Tensor, verified: Tensor | None, sampled: Tensor
    ) -> MadeDrafts | None:
        """Go on where the model has sampled.

        Args:
            inputs: The step.
            token_index: [num_tokens] of its tokens in the table, where what was sampled stands.
            verified, sampled: [s] what stood there before, and what was sampled.
        """
        if self._waits:
            self._wait(token_index)
            return None
        samples, num = samples_of(inputs), self._num
        read = self._behind(inputs, samples, token_index, verified, sampled)
        self._states = self._batch = None
        # Of a step that samples nothing, somebody must be last.
        last = read.last if len(samples.rows) else read.last.new_full((1,), len(read.ids) - 1)
        fills = not num or not len(samples.rows)
        batch = replace(read.batch, outputs_at=last, between=unread if fills else None)
        try:
            passed, found = self._head.forward(read.ids, read.states, batch)
        except Written:
            return None
        if fills:
            return None
        longest = int(inputs.seq_lens.max()) + num
        made = self._go_on(samples.rows, passed, found, read.positions, longest)
        return MadeDrafts(samples.rows.tolist(), made[:, :num].contiguous())

    def _wait(self, token_index: Tensor) -> None:
        """Keep what the head is to write of a step."""
        assert self._later is not None and self._states is not None and self._batch is not None
        if not self._later.has_room(len(token_index)):
            self._write_up()
        ids = self._tables.tokens[token_index + 1]
        self._later.add(ids, self._states, self._batch)
        self._states = self._batch = None

    def _write_up(self) -> None:
        """Write what was kept."""
        if self._later is None or not self._later.count:
            return
        ids, states, batch = self._later.taken()
        with suppress(Written):
            self._head.forward(ids, states, replace(batch, between=unread))

    def _behind(
        self,
        inputs: StepInputs,
        samples: Samples,
        token_index: Tensor,
        verified: Tensor | None,
        sampled: Tensor,
    ) -> Behind:
        """Return what the head reads behind a step."""
        assert self._states is not None and self._batch is not None
        last, positions = self._last(samples, verified, sampled)
        ids = self._tables.tokens[token_index + 1]
        return Behind(ids, self._states, self._batch, last, positions)

    def _go_on(
        self, rows: Ints, passed: Tensor, found: Tensor, positions: Tensor, longest: int
    ) -> Tensor:
        """Return the drafts of each row, [r, at least as many as are wanted] int32.

        Args:
            rows: [r]
            passed, found: [r] what the head made of the last token of each row that is right.
            positions: [r] its position.
            longest: No position is beyond.
        """
        tokens = self._head.guess(found).to(torch.int32)
        if tokens.dim() == 2:
            return tokens
        made = [tokens]
        if self._num > 1:
            step = self._begin_chain(rows, tokens, passed, positions, longest)
            made += [step(at)[: len(tokens)].clone() for at in range(1, self._num)]
        return torch.stack(made, 1)

    def warm_up(self) -> None:
        """Run the head once behind a step of which nobody samples."""
        assert self._states is not None and self._batch is not None
        states, batch, tokens = self._states, self._batch, self._tables.tokens
        ids = tokens.new_zeros(len(states))
        last = torch.full((1,), len(ids) - 1, device=tokens.device)
        passed, found = self._head.forward(ids, states, replace(batch, outputs_at=last))
        if self._head.guess(found).dim() == 1 and self._chain is None:  # recordings read it
            self._chain = Chain.of(self._room(passed), len(self._tables.blocks[0]))
        if self._later is None:
            self._later = Later.of(self._head, states)
        self._states = self._batch = None

    def _room(self, passed: Tensor) -> Tensor:
        """Return the form in which a chain keeps what is handed on."""
        return passed

    def record(
        self, record: Callable[[Callable[[], Tensor]], Callable[[], Tensor]], sizes: Sequence[int]
    ) -> None:
        """Record the step of a chain for numbers of rows, if the head makes chains; warmed up.

        Args:
            record: See `GraphOp`.
            sizes: Ascending.
        """
        if self._chain is not None:
            sizes = [size for size in sizes if size <= CHAINED_ROWS]
            self._steps = [Recordings(sizes) for _ in range(self._kinds)]
            for kind, steps in enumerate(self._steps):
                for size in reversed(sizes):
                    own = self._chain, size, self._tables.max_model_len, kind
                    steps.keep(size, record(partial(self._one_more, *own)))

    def _begin_chain(
        self, rows: Ints, tokens: Tensor, passed: Tensor, positions: Tensor, longest: int
    ) -> Callable[[int], Tensor]:
        """Return what makes one more draft of each row, call by call, told how many were made.

        Args:
            rows: [r]
            tokens, passed, positions: [r] the first drafts, what the head hands on behind them,
                and the position before each.
            longest: No position is beyond.
        """
        count, device = len(rows), tokens.device
        limit = self._limits(rows)
        chain = self._chain = self._chain or Chain.of(passed, len(self._tables.blocks[0]))
        own = (tokens, passed, positions, limit, place(rows.astype(np.int64), device))
        for held_there, given in zip(chain, own, strict=True):
            held_there[:count].copy_(given)
        size = self._steps[0].size_for(count)
        if size is None:
            return lambda at: self._one_more(chain, count, longest, self._kind(at))
        chain.limit[count:size].zero_()  # nobody's rows have no room
        return lambda at: self._steps[self._kind(at)].replay(size)

    def _kind(self, at: int) -> int:
        """Return which of the steps that differ makes a draft behind so many."""
        return 0

    def _limits(self, rows: Ints) -> Tensor:
        """Return [r] int64, the places of each row in blocks that it holds."""
        held = self._columns[self._groups][:, rows].min(0) * self._tables.block_size
        held = np.minimum(held, self._tables.max_model_len).astype(np.int64)
        return place(held, self._tables.tokens.device)

    def _one_more(self, chain: Chain, count: int, longest: int, kind: int) -> Tensor:
        """Make one more draft of each of so many rows, and return them.

        Args:
            kind: See `_kind`.
        """
        tokens, passed, positions, limit, rows = (tensor[:count] for tensor in chain)
        if self._advances:
            positions.add_(1)
        has_room = positions < limit
        batch = self._one_each(rows, positions, has_room, longest)
        made = self._guessed(tokens, passed, batch, kind)
        tokens.copy_(made)
        return made.where(has_room, NO_DRAFT)

    def _guessed(self, tokens: Tensor, passed: Tensor, batch: ForwardBatch, kind: int) -> Tensor:
        """Return the tokens behind others, [r] int32, and put what is handed on into `passed`."""
        handed_on, found = self._head.forward(tokens, passed, batch)
        passed.copy_(handed_on)
        return self._head.guess(found).to(torch.int32)

    def _last(
        self, samples: Samples, verified: Tensor | None, sampled: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return, of each row that samples, the last token of the step that is right: its index in
        the step, and its position."""
        device = self._tables.tokens.device
        tokens, positions = place(samples.tokens, device), place(samples.positions, device)
        if verified is None or not samples.drafted.any():
            return tokens, positions
        at = place(samples.at, device)
        agreed = (verified[at] == sampled[at]) & place(samples.drafted, device)
        accepted = agreed.long().cumprod(1).sum(1)
        return tokens + accepted, positions + accepted

    def _one_each(
        self, rows: Tensor, positions: Tensor, has_room: Tensor, longest: int
    ) -> ForwardBatch:
        """Describe a step of one token of each row; one without room computes nobody's token.

        Args:
            rows, positions: [r] int64.
            has_room: [r] whether a block is held for the position.
            longest: No position is beyond.
        """
        tables = self._tables
        count, size = len(rows), tables.block_size
        own = positions.where(has_room, 0)
        lengths = (own + 1).to(torch.int32)
        starts = torch.arange(count + 1, dtype=torch.int32, device=rows.device)
        longest = min(longest, tables.max_model_len)
        shape = StepShape(count, starts, lengths, 1, longest)

        def view(group: int) -> CacheView:
            blocks = tables.blocks[group]
            slots = blocks[rows, own // size] * size + own % size
            slots = slots.where(has_room, self._null_slots[group]).to(torch.int32)
            return CacheView(blocks[:, : -(-longest // size)].index_select(0, rows), slots)

        return ForwardBatch(own.to(torch.int32), shape, self._views_of(shape, view))

    def _views_of(
        self, shape: StepShape, view_of: Callable[[int], CacheView]
    ) -> Sequence[CacheView]:
        """Make the views of the head, of a cache group each, and have them prepared."""
        nothing = self._null_slots  # stands for what nobody reads
        views: list[CacheView] = []
        for number, plan in enumerate(self._tables.plans):
            if number not in self._views:
                views.append(views[-1] if views else CacheView(nothing, nothing))
                continue
            view = view_of(plan.group)
            view.prepared = plan.prepare(shape, view)
            views.append(view)
        return views


class Written(Exception):  # noqa: N818  (it is no error)
    """Keys and values are written, and nobody wants more of a head."""


def unread(q: Tensor, attend: Attend, width: int | None = None) -> Tensor:
    """Take the place of attention where nobody wants its result."""
    raise Written


def samples_of(inputs: StepInputs) -> Samples:
    """Find the samples of each row."""
    rows = inputs.sample_rows
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    counts = np.diff(first, append=len(rows))
    places = np.arange(counts.max(initial=1))
    behind = counts[:, None] - 1
    return Samples(
        rows=rows[first].astype(np.int32),
        at=first[:, None] + np.minimum(places, behind),
        drafted=places < behind,
        tokens=inputs.sample_at[first],
        positions=inputs.sample_lens[first] - 1,
    )
