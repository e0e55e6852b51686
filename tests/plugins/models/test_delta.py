"""Where channels of values lie that a file has in another order."""

import pytest
import torch

from hotshoe.layers.split import Section, split_sections
from hotshoe_models.delta import tiled


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_rank_has_its_heads_in_the_files_order(ranks: int) -> None:
    keys, heads, width = 4, 3, 5
    size = keys * heads * width
    whole = torch.randn(7, size)  # heads of a key together
    stored = torch.arange(size).view(keys, heads, width).transpose(0, 1).flatten()
    for rank in range(ranks):
        split = split_sections("heads", [Section(keys, heads * width)], rank, ranks)
        own = torch.cat([whole[:, part] for part in split.within(0, size)], 1)
        turned = own.view(7, -1, heads, width).transpose(1, 2).reshape(own.shape)
        parts = tiled(split, keys, heads, width).within(0, size)
        expected = torch.cat([whole[:, stored][:, part] for part in parts], 1)
        assert torch.equal(turned, expected)
