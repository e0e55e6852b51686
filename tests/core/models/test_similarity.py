"""How close vectors are, by the four functions that sentence-transformers names."""

import pytest

from hotshoe.models.similarity import similarity


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("cosine", 0.96), ("dot", 24.0), ("euclidean", -(2**0.5)), ("manhattan", -2)],
)
def test_functions(name, wanted) -> None:
    assert similarity(name, [3.0, 4.0], [4.0, 3.0]) == pytest.approx(wanted)


def test_a_cosine_stays_in_its_range() -> None:
    assert similarity("cosine", [0.1] * 3, [0.1] * 3) <= 1.0
    assert similarity("cosine", [0.0, 0.0], [1.0, 0.0]) == 0.0
