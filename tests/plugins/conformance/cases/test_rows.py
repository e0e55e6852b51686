"""Rows of a paged cache in cases: where they lie, and what may be there afterwards."""

import torch

from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.rows import draw_blocks


def test_blocks_of_requests_are_apart() -> None:
    batch = Batch(((1, 45), (7, 7), (1, 16), (1, 17)))
    blocks, number = draw_blocks(16, batch, torch.Generator().manual_seed(3))
    assert [len(own) for own in blocks] == [3, 1, 1, 2]
    every = torch.cat(blocks)
    assert len(set(every.tolist())) == 7 and int(every.max()) < number == 10
