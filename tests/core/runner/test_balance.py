"""Placements become better, a few changes at a time, and every expert keeps a place."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.layers.experts import share_of
from hotshoe.runner.balance import (
    CHANGES,
    SETTLED,
    ExpertBalance,
    balance_of,
    balanced,
    loads_of,
    rows_of,
)
from hotshoe.types.experts import ExpertCounts
from hotshoe.types.mesh import Axis


@st.composite
def loaded(draw):
    """Draw tokens of each expert, and which is where."""
    count, ranks = draw(st.integers(2, 16)), draw(st.integers(2, 4))
    if ranks > count:
        ranks = 2
    redundant = draw(st.integers(0, count * (ranks - 1) // 2))
    experts = share_of(count, Axis(0, ranks), "cpu", redundant).everywhere
    tokens = draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count))
    return torch.tensor(tokens, dtype=torch.float64), experts


@given(loaded())
def test_changes_are_few_valid_and_for_the_better(drawn) -> None:
    counts, experts = drawn
    for _ in range(40):
        better = balanced(counts, experts)
        assert set(better.flatten().tolist()) == set(range(len(counts)))
        assert (better != experts).sum() <= 2 * CHANGES
        before, after = (loads_of(counts, e) for e in (experts, better))
        torch.testing.assert_close(after.sum(), counts.sum())
        if torch.equal(better, experts):
            break
        assert after.max() < before.max()
        experts = better
    else:
        raise AssertionError("it changes places for ever")


def test_work_of_one_rank_is_shared() -> None:
    counts = torch.tensor([8.0, 8.0, 0.0, 0.0], dtype=torch.float64)
    better = balanced(counts, torch.tensor([[0, 1], [2, 3]]))
    assert loads_of(counts, better).tolist() == [8.0, 8.0]


def test_a_hot_expert_gets_a_second_place() -> None:
    counts = torch.tensor([90.0, 0.0, 5.0, 5.0], dtype=torch.float64)
    better = balanced(counts, torch.tensor([[0, 1, 2], [3, 1, 2]]))
    assert (better == 0).sum() == 2
    assert (
        loads_of(counts, better).tolist() == [47.5, 52.5] or loads_of(counts, better).max() <= 52.5
    )


def test_rows_of_a_place_come_from_stacked_and_single_tensors() -> None:
    stacked = {"b": torch.arange(6.0).view(3, 2), "a": torch.arange(12)}
    assert [row.tolist() for row in rows_of(stacked, 3, 1)] == [[4, 5, 6, 7], [2.0, 3.0]]
    single = {f"experts.{i}.{name}": torch.tensor(i) for i in range(12) for name in "xy"}
    assert [int(row) for row in rows_of(single, 12, 1)] == [1, 1]


def test_what_is_told_of_a_round(monkeypatch) -> None:
    """Once for all layers: the mean of how uneven they were, before anything was moved."""
    monkeypatch.setattr(ExpertBalance, "_move", lambda *_: 2)
    shares = [share_of(4, Axis(0, 2), "cpu", 0) for _ in range(2)]
    balance = ExpertBalance(shares, Axis(0, 2), SimpleNamespace(broadcast=lambda *_: None), 1)
    told = []
    for _ in range(3 * (SETTLED + 3)):
        shares[0].counts[:] = torch.tensor([9, 9, 0, 0])  # the first rank has all of it
        shares[1].counts[:] = 7
        told.append(balance.before_step())
    first, second = (news for news in told if news is not None)
    assert first == ExpertCounts(num_rearrangements=1, num_moved=2, imbalance=1.5)
    assert (second.num_rearrangements, second.num_moved) == (2, 4)


def test_counts_are_read_when_no_step_before_them_is_under_way(monkeypatch) -> None:
    """Of a pipeline more steps may be under way than of a single stage."""
    events: list[str] = []
    monkeypatch.setattr(ExpertBalance, "_even_out", lambda *_: events.append("read"))
    group = SimpleNamespace(broadcast=lambda *_: events.append("sent"))
    axis = Axis(0, 2)
    ctx = SimpleNamespace(mixtures=[share_of(4, axis, "cpu", 0)], communicator=group)
    parallel = {"pipeline_parallel_size": 2, "pipeline_steps": 64}
    config = EngineConfig("m", enable_eplb=True, eplb_step_interval=1, **parallel)
    with pytest.raises(ConfigError, match=r"moe has no `state`.*--kernel moe=NAME"):
        balance_of(config, ctx, axis)
    ctx.mixtures[0].state = dict
    balance = balance_of(config, ctx, axis)
    assert balance is not None
    events.clear()
    for _ in range(200):
        balance.before_step()
        events.append("step")
    assert events.index("read") - events.index("sent") - 1 >= 64


def test_all_ranks_have_exchanged_what_a_round_exchanges() -> None:
    """Before the first step, both ways, and nothing is changed."""
    moved: list[tuple[str, int, int]] = []

    def note(what: str):
        return lambda x, rank: moved.append((what, rank, x.numel())) or Waited()

    class Waited:
        def wait(self) -> None:
            assert len(moved) == 8, "all was asked for before"

    group = SimpleNamespace(broadcast=lambda *_: None, send=note("send"), recv=note("recv"))
    axis = Axis(1, 3)
    share = share_of(6, axis, "cpu", 0)
    held = {"weight": torch.arange(10.0).view(2, 5), "scale": torch.arange(2.0)}
    kept = {name: tensor.clone() for name, tensor in held.items()}
    share.state = lambda: held
    share.counts.fill_(3)
    balance = ExpertBalance([share], axis, group, 1)
    balance.meet()
    assert sorted(moved) == sorted(
        (what, rank, size) for what in ("send", "recv") for rank in (0, 2) for size in (5, 1)
    )
    assert all(torch.equal(held[name], kept[name]) for name in held)
    assert [balance.before_step() for _ in range(SETTLED)] == [None] * SETTLED
