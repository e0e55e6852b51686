"""A group that is quiet asks nobody, and gives results of the right shapes."""

import pytest
import torch

from hotshoe.runner.groups import Group
from hotshoe.slots import Rendezvous


class Loud:
    """Fails where it is asked; knows what it was to rehearse."""

    rank, size = 0, 3

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.rehearsed: list[torch.Tensor] = []

    def open(self, rendezvous: Rendezvous) -> None:
        self.rank = rendezvous.rank

    def __getattr__(self, name: str):
        return lambda *given: self.asked.append(name)


class Compiled(Loud):
    def rehearse(self, x: torch.Tensor) -> None:
        self.rehearsed.append(x)


@pytest.fixture
def op() -> Loud:
    return Compiled()


@pytest.fixture
def group(op: Loud) -> Group:
    group = Group(op, 3)
    group.open(Rendezvous("", 1, 3, 1.0))
    return group


def test_a_quiet_group_asks_nobody_also_through_methods_that_layers_hold(
    group: Group, op: Loud
) -> None:
    add = group.all_reduce
    with group.quiet():
        add(torch.zeros(1))
        group.send(torch.zeros(1), 2).wait()
        group.recv(torch.zeros(1), 0).wait()
    assert not op.asked
    add(torch.zeros(1))
    assert op.asked == ["all_reduce"]


def test_it_is_not_quiet_behind_a_step_that_fails(group: Group, op: Loud) -> None:
    with pytest.raises(KeyboardInterrupt), group.quiet():
        raise KeyboardInterrupt
    group.broadcast(torch.zeros(1), 0)
    assert op.asked == ["broadcast"]


def test_results_have_the_shapes_of_real_ones(group: Group) -> None:
    x, nan = torch.randn(6, 2).half(), torch.full((9, 2), torch.nan).half()
    with group.quiet():
        total = group.all_reduce(x)
        assert torch.equal(total, x) and total.data_ptr() != x.data_ptr()
        assert group.all_reduce(x, x) is x
        assert group.broadcast(x, 0) is x
        rows = {
            18: group.all_gather(x),
            9: group.all_gather(x, [2, 6, 1]),
            2: group.reduce_scatter(x),
            3: group.reduce_scatter(x, [1, 3, 2]),
            6: group.all_to_all(x),
            4: group.all_to_all(x, [2, 2, 2], [1, 2, 1]),
        }
        for count, found in rows.items():
            assert (found.shape, found.dtype) == ((count, 2), x.dtype) and not found.any()
        assert group.all_gather(x, [2, 6, 1], nan) is nan and not nan.any()
        came = torch.full((2,), torch.nan)
        group.recv(came, 0).wait()
        assert not came.any()


def test_kernels_of_sums_are_met(group: Group, op: Loud) -> None:
    x = torch.zeros(4)
    with group.quiet():
        group.all_reduce(x)
    assert [found is x for found in op.rehearsed] == [True]


def test_a_group_knows_its_rank_once_it_has_met_the_others(group: Group) -> None:
    assert (group.rank, group.size) == (1, 3)
