"""The embedding reference: rows by index, times a scale."""

import pytest
import torch

from hotshoe.slots import EmbeddingSpec
from hotshoe.slots.reference.embedding import build


@pytest.mark.parametrize("scale", [1.0, 3.25])
def test_rows_by_index(scale):
    table = torch.randn(20, 6)
    ids = torch.tensor([19, 0, 7, 7], dtype=torch.int32)
    before = table.clone()
    got = build(EmbeddingSpec(20, 6, "float32", scale), None)(ids, table)
    assert torch.equal(got, torch.stack([table[i] * scale for i in ids.tolist()]))
    got.zero_()  # a new tensor: the model adds to it in place
    assert torch.equal(table, before)
