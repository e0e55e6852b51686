"""Rows of q, k and v that a checkpoint has kv head by kv head."""

import random

import pytest

from hotshoe.layers import Section
from hotshoe.layers.split import split_sections
from hotshoe_models.head_rows import in_checkpoint, ungrouped
from hotshoe_models.spec import DecoderSpec, WeightNames


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rows_of_shares_are_found(ranks: int) -> None:
    """8 heads in 4 shares, each row named by its place behind q, k and v."""
    names = {name: [f"{name}{i}" for i in range(8)] for name in "qkv"}
    stored = [row for i in range(0, 8, 2) for name in "qvk" for row in names[name][i : i + 2]]
    shares = WeightNames(qkv_shards=4)
    heads = {"num_heads": 8, "num_kv_heads": 8, "head_dim": 3}
    spec = DecoderSpec(
        vocab_size=1, hidden_size=1, layers=(), norm_eps=1.0, tied=False, names=shares, **heads
    )
    rank, size = random.randrange(ranks), 8 // ranks
    split = split_sections("heads", [Section(8, 3)] * 3, rank, ranks)
    ranges = in_checkpoint(split, spec).ranges
    wanted = [row for rows in names.values() for row in rows[size * rank : size * (rank + 1)]]
    assert [stored[begin // 3] for begin, _ in ranges] == wanted
    assert all(end - begin == 3 for begin, end in ranges)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_grouped_rows_are_found(ranks: int) -> None:
    """8 query heads over 4 kv heads, each row named by its place behind q, k and v."""
    names = {name: [f"{name}{i}" for i in range(8 if name == "q" else 4)] for name in "qkv"}
    stored = [
        row
        for group in range(4)
        for row in (*names["q"][2 * group : 2 * group + 2], names["k"][group], names["v"][group])
    ]
    spec = DecoderSpec(
        vocab_size=1,
        hidden_size=1,
        layers=(),
        norm_eps=1.0,
        tied=False,
        num_heads=8,
        num_kv_heads=4,
        head_dim=3,
    )
    rank = random.randrange(ranks)
    sections = [Section(8, 3), Section(4, 3, shared=True), Section(4, 3, shared=True)]
    ranges = ungrouped(split_sections("heads", sections, rank, ranks), spec).ranges
    share = [
        row
        for part in names.values()
        for row in part[len(part) * rank // ranks : len(part) * (rank + 1) // ranks]
    ]
    assert [stored[begin // 3] for begin, _ in ranges] == share
    assert all(end - begin == 3 for begin, end in ranges)
