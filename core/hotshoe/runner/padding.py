"""Steps of requests that nobody sent, for warming up and for recordings."""

from __future__ import annotations

import numpy as np

from hotshoe.runner.rows import Ints, Puts, StepInputs


def padding_inputs(lengths: Ints, row: int, slots: Ints, block_size: int) -> StepInputs:
    """Return a step of requests that nobody sent, all of it in one block of each group.

    Args:
        lengths: [n] tokens of each.
        row: The row whose block tables they read.
        slots: [groups] where the blocks begin.
    """
    query_start_loc = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=query_start_loc[1:])
    positions = np.arange(query_start_loc[-1], dtype=np.int32)
    positions -= np.repeat(query_start_loc[:-1], lengths)
    nothing = Puts(np.zeros(0, np.int64), np.zeros(0, np.int32))
    return StepInputs(
        rows=np.full(len(lengths), row, np.int32),
        query_start_loc=query_start_loc,
        seq_lens=lengths,
        positions=positions,
        token_index=np.zeros(len(positions), np.int64),
        slot_mapping=slots[:, None] + positions % block_size,
        sample_at=nothing.index,
        sample_rows=nothing.index,
        sample_lens=nothing.index,
        blocks=nothing,
        tokens=nothing,
    )
