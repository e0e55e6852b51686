"""Steps of attention with logits of relative positions, in slices."""

import torch

from hotshoe.slots import AttentionMetadata, slices


def test_slices_are_steps_of_their_own() -> None:
    starts, lens = torch.tensor([0, 1, 6, 6]).int(), torch.tensor([4, 9, 3]).int()
    step = AttentionMetadata(3, starts, lens, torch.zeros(3, 1).int(), torch.zeros(6).int(), 5, 9)
    found = [
        (own.start, own.stop, part.query_start_loc.tolist(), part.seq_lens.tolist())
        for own, part in slices(step, 4)
    ]
    assert found == [(0, 4, [0, 1, 4, 4], [4, 7, 1]), (4, 6, [0, 0, 2, 2], [4, 9, 3])]
    assert [part for _, part in slices(step, 6)] == [step]
