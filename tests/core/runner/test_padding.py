"""Steps that nobody sent."""

import numpy as np

from hotshoe.runner.padding import padding_inputs

BLOCK_SIZE = 4


def test_padding_inputs_stay_in_one_block() -> None:
    inputs = padding_inputs(
        np.array([5, 1], np.int32), 9, np.array([8 * BLOCK_SIZE], np.int32), BLOCK_SIZE
    )
    assert inputs.positions.tolist() == [0, 1, 2, 3, 4, 0]
    assert set((inputs.slot_mapping[0] // BLOCK_SIZE).tolist()) == {8}
    assert inputs.rows.tolist() == [9, 9]
    assert inputs.sample_rows.size == 0
