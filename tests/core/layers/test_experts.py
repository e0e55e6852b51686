"""Where experts are: every token finds each expert on one rank, shares are even, faults named."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.errors import ConfigError
from hotshoe.layers.experts import TURNS, names_of, share_of, table_of
from hotshoe.types.mesh import Axis


@st.composite
def placements(draw):
    """Draw the number of experts, and [ranks, places] of them, each there at least once."""
    count, ranks = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    more = draw(st.lists(st.integers(0, count - 1), max_size=8))
    everywhere = draw(st.permutations([*range(count), *more]))
    parts = torch.tensor(everywhere).tensor_split(ranks)
    return count, torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=-1)


@given(placements(), st.integers(1, 12))
def test_each_token_finds_each_expert_once(drawn, turns) -> None:
    count, experts = drawn
    ranks = range(len(experts))
    tables = [table_of(experts, count, rank, turns) for rank in ranks]
    held = [int((row >= 0).sum()) for row in experts]
    for table in tables:
        assert (table.shape, table.dtype) == ((turns, count), torch.int32)
    for turn in range(turns):
        for expert in range(count):
            found = [(r, int(tables[r][turn, expert])) for r in ranks]
            [(rank, place)] = [(r, p) for r, p in found if p != held[r]]
            assert experts[rank, place] == expert


def test_an_expert_of_several_places_takes_turns() -> None:
    experts = torch.tensor([[0, 1], [2, 0]])
    assert table_of(experts, 3, 0, 4).tolist() == [[0, 1, 2], [2, 1, 2], [0, 1, 2], [2, 1, 2]]
    assert table_of(experts, 3, 1, 4).tolist() == [[2, 2, 0], [1, 2, 0], [2, 2, 0], [1, 2, 0]]


def test_uneven_shares_differ_by_one() -> None:
    shares = [share_of(8, Axis(rank, 3), "cpu") for rank in range(3)]
    assert [share.experts for share in shares] == [(0, 1, 2), (3, 4, 5), (6, 7)]
    assert [share.held for share in shares] == [3, 3, 2]
    assert shares[2].placement.table.tolist() == [[2] * 6 + [0, 1]]
    assert shares[2].others(8) == list(range(6))


def test_one_rank_holds_all_without_a_placement() -> None:
    share = share_of(5, Axis(), "cpu")
    assert (share.experts, share.placement, share.held) == (tuple(range(5)), None, None)
    assert share.others(5) == []


def test_more_ranks_than_experts_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"enable_expert_parallel: 4 ranks .* 3 experts; use a te"
    ):
        share_of(3, Axis(0, 4), "cpu")


def test_places_of_experts_that_move_are_as_many_on_each_rank() -> None:
    shares = [share_of(5, Axis(rank, 2), "cpu", 2) for rank in range(2)]
    assert [share.experts for share in shares] == [(0, 1, 2, 3), (4, 0, 1, 2)]
    assert all(share.moves and share.num_experts == 5 for share in shares)
    assert [share.placement.table.shape for share in shares] == [(TURNS, 5)] * 2
    assert not share_of(5, Axis(0, 2), "cpu").moves
    with pytest.raises(ConfigError, match=r"num_redundant_experts 7: 2 ranks .* more than 5 bes"):
        share_of(5, Axis(0, 2), "cpu", 7)


def test_names_of_experts_are_met_exactly() -> None:
    [pattern] = names_of(["model.layers.1.experts.{}.up"], [1, 12])
    for name, met in (
        ("model.layers.1.experts.12.up.weight", True),
        ("model.layers.1.experts.1.up.weight_scale", True),
        ("model.layers.1.experts.2.up.weight", False),
        ("model.layers.1.experts.11.up.weight", False),
        ("model.layers.1.experts.1.up_more.weight", False),
        ("other.model.layers.1.experts.1.up.weight", False),
    ):
        assert bool(re.search(pattern, name)) is met
