"""Occurrences of ends against a search place by place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe_speculation import lookup
from hotshoe_speculation.lookup import Known, longest_end


@given(
    text=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    end=st.lists(st.integers(0, 2), min_size=1, max_size=10),
    longest=st.integers(1, 6),
)
def test_every_occurrence_of_the_longest_end_is_found(
    text: list[int], end: list[int], longest: int
) -> None:
    expected: tuple[int, list[int]] = (0, [])
    for length in range(1, min(longest, len(end)) + 1):
        places = [p for p in range(length, len(text)) if text[p - length : p] == end[-length:]]
        if not places:
            break
        expected = (length, places)
    for few in (0, 2, lookup.FEW):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookup, "FEW", few)
            found = longest_end(np.array(text, np.int32), np.array(end, np.int32), longest)
        assert (found[0], found[1].tolist()) == expected


def test_known_tokens_grow() -> None:
    known = Known()
    for length in (1, 3, 700, 701):
        assert known.take(range(length)).tolist() == list(range(length))
