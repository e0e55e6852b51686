"""Places of ranks, and the layers of stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.types.mesh import Axis, Mesh, cut


def test_ranks_are_numbered_stage_by_stage() -> None:
    places = [Mesh.at(rank, pp=2, tp=3) for rank in range(6)]
    assert [(place.pp.rank, place.tp.rank) for place in places] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert [place.reports for place in places] == [False, False, False, True, False, False]
    assert [list(place.tp_ranks) for place in places[2:4]] == [[0, 1, 2], [3, 4, 5]]
    assert [list(place.pp_ranks) for place in places[2:4]] == [[2, 5], [0, 3]]
    assert Mesh.at(0, 1, 1) == Mesh()
    assert Mesh().reports


def test_the_ends_of_an_axis() -> None:
    assert [(Axis(i, 3).is_first, Axis(i, 3).is_last) for i in range(3)] == [
        (True, False),
        (False, False),
        (False, True),
    ]


@given(count=st.integers(1, 200), stages=st.integers(1, 200))
def test_layers_are_cut_evenly(count: int, stages: int) -> None:
    if stages > count:
        with pytest.raises(ValueError, match=f"use {count} or less"):
            cut(count, stages)
        return
    parts = cut(count, stages)
    assert [layer for part in parts for layer in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_layers_are_cut_as_given() -> None:
    assert cut(5, 2, (4, 1)) == [range(4), range(4, 5)]
    with pytest.raises(ValueError, match="add up to the model's 6 layers, not to 5"):
        cut(6, 2, (4, 1))
