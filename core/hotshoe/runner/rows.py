"""Persistent rows: what the runner remembers of each running request, and a step's shape from it.

All per-step work is vectorized over tokens or rows on the host; nothing here waits for a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from hotshoe.types import StepPlan

Ints = npt.NDArray[np.int32]
Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Puts:
    """Entries of a flat table that change: `table[index] = values`."""

    index: Indexes
    values: Ints


def alone(ends: Ints) -> Ints:
    """Return the spans of requests of one token that end so, each of a sequence of its own."""
    return np.stack([ends - 1, ends], axis=1).reshape(-1)


NO_PUTS = Puts(np.zeros(0, np.int64), np.zeros(0, np.int32))


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's host arrays; n requests, t tokens.

    Attributes:
        rows: [n] rows in step order.
        query_start_loc: [n + 1] first token of each request, then t.
        seq_lens: [n] tokens of each request after this step.
        positions: [t].
        token_index: [t] flat index of each input token into the token table.
        slot_mapping: [groups, t] block_id * block_size + offset.
        sample_at: [s] token index of each sample, in step order; a row with k drafts has k + 1.
        sample_rows: [s] their rows.
        sample_lens: [s] tokens before each, also the position of the sampled token.
        blocks: What changes in the block tables [groups, rows + 1, max_blocks_per_req].
        tokens: What the host adds to the token table.
        drafts: As `StepShape.host_drafts`.
        tree: Of a step with trees, on the host, as `TreeNodes`.
        spans: As `StepShape.spans`, flat; empty for None.
    """

    rows: Ints
    query_start_loc: Ints
    seq_lens: Ints
    positions: Ints
    token_index: Indexes
    slot_mapping: Ints
    sample_at: Indexes
    sample_rows: Indexes
    sample_lens: Indexes
    blocks: Puts
    tokens: Puts
    drafts: tuple[Sequence[int], Sequence[int]] | None = None
    tree: tuple[Ints, Indexes] | None = None
    spans: Ints = field(default_factory=lambda: NO_PUTS.values)

    @property
    def num_tokens(self) -> int:
        """Tokens of requests; there may be others behind them."""
        return int(self.query_start_loc[-1])

    @property
    def decodes_only(self) -> bool:
        """True when every request computes one token and samples after it."""
        return self.drafts is None and len(self.rows) == len(self.positions) == len(self.sample_at)

    def padded(self, size: int, row: int, slots: Ints) -> StepInputs:
        """Add rows of one token until there are `size`. They sample nothing.

        Args:
            size: At least n.
            row: The row whose block tables they read.
            slots: [groups] where they all write.
        """
        extra = size - len(self.rows)
        if not extra:
            return self
        ends = np.arange(1, extra + 1, dtype=np.int32) + self.query_start_loc[-1]
        return replace(
            self.padded_tokens(size, slots),
            rows=_grown(self.rows, extra, row),
            query_start_loc=np.concatenate([self.query_start_loc, ends]),
            seq_lens=_grown(self.seq_lens, extra, 1),
            spans=np.concatenate([self.spans, alone(ends)]) if len(self.spans) else self.spans,
        )

    def padded_tokens(self, size: int, slots: Ints) -> StepInputs:
        """Add tokens of no request behind the others until there are `size`.

        Args:
            size: At least t.
            slots: [groups] where they all write.
        """
        extra = size - len(self.positions)
        return replace(
            self,
            positions=_grown(self.positions, extra, 0),
            token_index=np.concatenate([self.token_index, np.zeros(extra, np.int64)]),
            slot_mapping=np.concatenate(
                [self.slot_mapping, np.repeat(slots[:, None], extra, 1)], axis=1
            ),
        )


class Rows:
    """Per-row counters and block tables.

    Args:
        max_num_seqs: Number of rows.
        max_model_len: Longest sequence; the token table has one column more.
        block_size: Tokens per block.
        num_groups: Cache groups.
        lags: Say of each step what its states need to know of drafts.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_groups: int = 1,
        lags: bool = False,
    ) -> None:
        self._lags = lags
        self.width = max_model_len + 1
        self._block_size = block_size
        self.max_blocks = -(-self.width // block_size)
        # One row more than requests, as on the device, where padding reads it.
        shape = (num_groups, max_num_seqs + 1, self.max_blocks)
        self.block_table: Ints = np.zeros(shape, np.int32)
        # Of 64 bits, as what they index with would be converted in every step else.
        self.num_tokens: Indexes = np.zeros(max_num_seqs, np.int64)
        self.num_computed: Indexes = np.zeros(max_num_seqs, np.int64)
        self.num_prompt: Ints = np.zeros(max_num_seqs, np.int32)
        self._listed: list[int] = []
        self._arrays: tuple[Indexes, Ints] = (NO_PUTS.index, NO_PUTS.values)

    def advance(self, plan: StepPlan) -> StepInputs:
        """Take in a plan and return its inputs; counters then stand after the step."""
        if plan.accepted_rows:
            accepted = np.array(plan.num_accepted, np.int32)
            self.num_tokens[plan.accepted_rows] += accepted
            self.num_computed[plan.accepted_rows] += accepted
        for new in plan.new_rows:
            row = new.row
            self.num_tokens[row] = len(new.token_ids)
            self.num_computed[row] = new.num_computed_tokens
            self.num_prompt[row] = new.num_prompt_tokens
        blocks = self._block_puts(plan)
        if blocks is not NO_PUTS:
            self.block_table.reshape(-1)[blocks.index] = blocks.values
        inputs = self._inputs(plan, blocks, self._token_puts(plan))
        inputs = inputs if not plan.draft_rows else self._with_drafts(plan, inputs)
        if self._lags and (plan.draft_rows or plan.accepted_rows):
            late = dict(zip(plan.accepted_rows, plan.num_accepted, strict=True))
            fresh = dict(zip(plan.draft_rows, map(len, plan.drafts), strict=True))
            numbers = [[found.get(row, 0) for row in plan.rows] for found in (late, fresh)]
            inputs = replace(inputs, drafts=(numbers[0], numbers[1]))
        return inputs

    def _block_puts(self, plan: StepPlan) -> Puts:
        width = self.max_blocks
        table = width * self.block_table.shape[1]
        index, values = [], []
        for new in plan.new_rows:
            for group, blocks in enumerate(new.block_ids):
                first = group * table + new.row * width
                index.append(np.arange(first, first + len(blocks)))
                values.append(np.array(blocks, np.int32))
        # A row that starts in this step does not change in it, so no entry is put twice.
        if plan.block_rows:
            rows, columns = np.array(plan.block_rows, np.int64), np.array(plan.block_cols, np.int64)
            groups = np.array(plan.block_groups, np.int64)
            index.append(groups * table + rows * width + columns)
            values.append(np.array(plan.block_ids, np.int32))
        return _join(index, values)

    def _token_puts(self, plan: StepPlan) -> Puts:
        index, values = [], []
        for new in plan.new_rows:
            first, count = new.row * self.width, len(new.token_ids)
            index.append(np.arange(first, first + count))
            # From a long list three times as fast as `np.array` is.
            values.append(np.fromiter(new.token_ids, np.int32, count))
        if plan.known_rows:
            known = np.array(plan.known_rows, np.int64)
            index.append(known * self.width + self.num_tokens[known] - 1)
            values.append(np.array(plan.known_tokens, np.int32))
        if plan.draft_rows:
            rows = np.array(plan.draft_rows, np.int64)
            counts = np.fromiter(map(len, plan.drafts), np.int64, len(rows))
            total = int(counts.sum())
            first = rows * self.width + self.num_tokens[rows] + counts - counts.cumsum()
            index.append(first.repeat(counts) + np.arange(total))
            values.append(np.fromiter(chain.from_iterable(plan.drafts), np.int32, total))
        return _join(index, values)

    def _with_drafts(self, plan: StepPlan, inputs: StepInputs) -> StepInputs:
        """Sample after each draft as well; rows that verify drafts count one token, as others."""
        numbers = np.array([len(drafts) for drafts in plan.drafts], np.int32)
        self.num_computed[plan.draft_rows] -= numbers
        self.num_tokens[plan.draft_rows] += 1
        drafted = np.zeros(len(inputs.rows), np.int64)
        drafted[np.isin(inputs.rows, plan.draft_rows)] = numbers
        yielding = np.concatenate([inputs.sample_rows, plan.draft_rows])
        sampling = np.flatnonzero(np.isin(inputs.rows, yielding))
        counts = drafted[sampling] + 1
        behind = np.repeat(np.cumsum(counts), counts) - np.arange(1, counts.sum() + 1)
        return replace(
            inputs,
            sample_at=np.repeat(inputs.query_start_loc[1:][sampling], counts) - 1 - behind,
            sample_rows=np.repeat(inputs.rows[sampling].astype(np.int64), counts),
            sample_lens=np.repeat(inputs.seq_lens[sampling].astype(np.int64), counts) - behind,
        )

    def _inputs(self, plan: StepPlan, blocks: Puts, tokens: Puts) -> StepInputs:
        if plan.rows != self._listed:  # most steps have the rows of the one before
            rows = np.array(plan.rows, np.int64)
            self._listed, self._arrays = plan.rows, (rows, rows.astype(np.int32))
        (rows, rows_32), count = self._arrays, len(plan.rows)
        starts = self.num_computed[rows]
        if plan.num_scheduled_tokens.count(1) == count:
            request, positions, seq_lens = rows, starts, starts + 1
            query_start_loc = np.arange(count + 1)
        else:
            counts = np.array(plan.num_scheduled_tokens, np.int64)
            query_start_loc = np.zeros(count + 1, np.int64)
            counts.cumsum(out=query_start_loc[1:])
            request, seq_lens = rows.repeat(counts), starts + counts
            positions = np.arange(query_start_loc[-1])
            positions += (starts - query_start_loc[:-1]).repeat(counts)
        self.num_computed[rows] = seq_lens
        sampling = seq_lens == self.num_tokens[rows]
        sample_rows, sample_lens, ends = rows, seq_lens, query_start_loc[1:]
        if np.count_nonzero(sampling) < count:
            sample_rows, sample_lens, ends = rows[sampling], seq_lens[sampling], ends[sampling]
        self.num_tokens[sample_rows] = sample_lens + 1
        columns = positions // self._block_size
        held = self.block_table[:, request, columns]
        return StepInputs(
            rows=rows_32,
            query_start_loc=query_start_loc.astype(np.int32),
            seq_lens=seq_lens.astype(np.int32),
            positions=positions.astype(np.int32),
            token_index=request * self.width + positions,
            slot_mapping=((held - columns) * self._block_size + positions).astype(np.int32),
            sample_at=ends - 1,
            sample_rows=sample_rows,
            sample_lens=sample_lens,
            blocks=blocks,
            tokens=tokens,
        )


def _grown(array: Ints, extra: int, value: int) -> Ints:
    return np.concatenate([array, np.full(extra, value, np.int32)])


def _join(index: list[npt.NDArray[np.int64]], values: list[Ints]) -> Puts:
    if len(index) == 1:
        return Puts(index[0], values[0])
    if not index:
        return NO_PUTS
    return Puts(np.concatenate(index), np.concatenate(values))
