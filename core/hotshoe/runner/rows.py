"""Persistent rows: what the runner remembers of each running request, and a step's shape from it.

All per-step work is vectorised over tokens or rows on the host; nothing here waits for a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hotshoe.types import StepPlan

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's host arrays; n requests, t tokens.

    Attributes:
        rows: [n] rows in step order.
        query_start_loc: [n + 1] first token of each request, then t.
        seq_lens: [n] tokens of each request after this step.
        positions: [t].
        token_index: [t] flat index of each input token into the token table.
        slot_mapping: [t] block_id * block_size + offset.
        block_table: [n, blocks] of the widest request.
        sample_at: [s] token index of each row that samples, in step order.
        sample_rows: [s] those rows.
        sample_lens: [s] tokens known of them, also the position of the sampled token.
    """

    rows: Ints
    query_start_loc: Ints
    seq_lens: Ints
    positions: Ints
    token_index: npt.NDArray[np.int64]
    slot_mapping: Ints
    block_table: Ints
    sample_at: npt.NDArray[np.int64]
    sample_rows: npt.NDArray[np.int64]
    sample_lens: npt.NDArray[np.int64]


class Rows:
    """Per-row counters and block tables.

    Args:
        max_num_seqs: Number of rows.
        max_model_len: Longest sequence; the token table has one column more.
        block_size: Tokens per block.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self.width = max_model_len + 1
        self._block_size = block_size
        max_blocks = -(-self.width // block_size)
        self.block_table: Ints = np.zeros((max_num_seqs, max_blocks), np.int32)
        self.num_tokens: Ints = np.zeros(max_num_seqs, np.int32)
        self.num_computed: Ints = np.zeros(max_num_seqs, np.int32)
        self.num_prompt: Ints = np.zeros(max_num_seqs, np.int32)

    def advance(self, plan: StepPlan) -> StepInputs:
        """Take in a plan and return its inputs; counters then stand after the step."""
        for new in plan.new_rows:
            row = new.row
            self.block_table[row, : len(new.block_ids)] = new.block_ids
            self.num_tokens[row] = len(new.token_ids)
            self.num_computed[row] = new.num_computed_tokens
            self.num_prompt[row] = new.num_prompt_tokens
        if plan.block_rows:
            self.block_table[plan.block_rows, plan.block_cols] = plan.block_ids
        rows = np.array(plan.rows, np.int32)
        counts = np.array(plan.num_scheduled_tokens, np.int32)
        return self._inputs(rows, counts)

    def _inputs(self, rows: Ints, counts: Ints) -> StepInputs:
        block_size = self._block_size
        starts = self.num_computed[rows]
        seq_lens = starts + counts
        query_start_loc = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=query_start_loc[1:])
        request = np.repeat(np.arange(len(rows)), counts)
        offset = starts - query_start_loc[:-1]
        positions = np.arange(query_start_loc[-1], dtype=np.int32) + offset[request]
        num_blocks = -(-int(seq_lens.max()) // block_size)
        block_table = self.block_table[rows, :num_blocks]
        blocks = block_table[request, positions // block_size]
        self.num_computed[rows] = seq_lens
        sampling = np.nonzero(seq_lens == self.num_tokens[rows])[0]
        sample_rows = rows[sampling].astype(np.int64)
        self.num_tokens[sample_rows] += 1
        return StepInputs(
            rows=rows,
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            positions=positions,
            token_index=rows.astype(np.int64)[request] * self.width + positions,
            slot_mapping=blocks * block_size + positions % block_size,
            block_table=block_table,
            sample_at=query_start_loc[1:][sampling].astype(np.int64) - 1,
            sample_rows=sample_rows,
            sample_lens=seq_lens[sampling].astype(np.int64),
        )
