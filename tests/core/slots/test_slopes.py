"""Slopes of heads, and of the heads of a rank."""

import pytest

from hotshoe.slots import Alibi


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (4, [2, 4, 6, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (6, [2, 4, 6, 8, 1, 3]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_of_heads_are_as_published(heads, exponents) -> None:
    expected = tuple(2.0**-exponent for exponent in exponents)
    assert Alibi(heads).slopes(heads) == expected
    halves = Alibi(heads).slopes(heads // 2) + Alibi(heads, heads // 2).slopes(heads // 2)
    assert halves == expected
    assert Alibi(heads, factor=0.5).slopes(1) == (expected[0] / 2,)
    assert Alibi(heads, max_bias=4.0).slopes(1)[0] == expected[0] ** 0.5
