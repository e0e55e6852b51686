"""Divisions of a dimension: together the ranks hold everything, and say when they cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.errors import ConfigError
from hotshoe.layers.split import Section, Split, split_padded, split_sections

sizes = st.integers(1, 8)


def indexes(split: Split) -> list[int]:
    return [i for begin, end in split.ranges for i in range(begin, end)]


@given(sizes, st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3))
def test_ranks_hold_everything_once_and_equally_much(size: int, shapes: list) -> None:
    sections = [Section(units * size, width) for units, width in shapes]
    splits = [split_sections("x", sections, rank, size) for rank in range(size)]
    assert len({split.size for split in splits}) == 1
    held = [i for split in splits for i in indexes(split)]
    assert sorted(held) == list(range(sum(s.units * s.width for s in sections)))
    begin = 0
    for section in sections:  # each rank holds the same share of every section, in order
        rows = range(begin, begin := begin + section.units * section.width)
        parts = [[i for i in indexes(split) if i in rows] for split in splits]
        assert [i for part in parts for i in part] == list(rows)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_shared_units_go_to_neighbors(units: int, holders: int, width: int) -> None:
    size = units * holders
    for rank in range(size):
        split = split_sections("x", [Section(units, width, shared=True)], rank, size)
        assert indexes(split) == list(range(rank // holders * width, (rank // holders + 1) * width))


@given(st.integers(1, 50), sizes)
def test_padding_makes_parts_equal(total: int, size: int) -> None:
    splits = [split_padded(total, rank, size) for rank in range(size)]
    assert len({split.size for split in splits}) == 1
    assert [i for split in splits for i in indexes(split)] == list(range(total))
    assert sum(split.padding for split in splits) < size * splits[0].size


@given(st.data())
def test_within_counts_from_the_stretch(data: st.DataObject) -> None:
    split = Split(((2, 5), (9, 12), (20, 20)))
    begin = data.draw(st.integers(0, 15))
    end = data.draw(st.integers(begin, 15))
    whole = list(range(end - begin))
    held = [i + begin for part in split.within(begin, end) for i in whole[part]]
    assert held == [i for i in indexes(split) if begin <= i < end]


def test_a_refusal_says_what_would_do() -> None:
    heads, kv_heads = Section(12, 64), Section(4, 64, shared=True)
    with pytest.raises(ConfigError, match=r"size 3 does not divide the model's 4 heads; use 1, 2,"):
        split_sections("heads", [heads, kv_heads], 0, 3)
    with pytest.raises(ConfigError, match=r"12 heads; use 1, 2, 4 or 12$"):
        split_sections("heads", [heads, kv_heads], 0, 5)
    with pytest.raises(ConfigError, match=r"does not divide the model's 1 heads; use 1$"):
        split_sections("heads", [Section(1)], 0, 2)
