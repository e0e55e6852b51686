"""Occurrences of ends against a search place by place."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hotshoe_speculation.lookup import Known, occurrences


@given(
    text=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    end=st.lists(st.integers(0, 2), min_size=1, max_size=10),
    longest=st.integers(1, 6),
)
def test_every_occurrence_of_every_end_is_found(
    text: list[int], end: list[int], longest: int
) -> None:
    found = occurrences(np.array(text, np.int32), np.array(end, np.int32), longest)
    expected = {}
    for length in range(1, min(longest, len(end)) + 1):
        places = [p for p in range(length, len(text)) if text[p - length : p] == end[-length:]]
        if not places:
            break
        expected[length] = places
    assert {length: places.tolist() for length, places in found} == expected


def test_known_tokens_grow() -> None:
    known = Known()
    for length in (1, 3, 700, 701):
        assert known.take(range(length)).tolist() == list(range(length))
