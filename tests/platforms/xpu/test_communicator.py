"""Everything composed from sums and even gathers; over a library that needs no device."""

import importlib.machinery
import random
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from tests.platforms.xpu.conftest import on_host

from hotshoe.slots import CommunicatorSpec, Rendezvous
from hotshoe_triton.communicator import Communicator
from hotshoe_xpu import communicator
from hotshoe_xpu.communicator import Composed

FACTS = on_host()
ALLOWED = {"allreduce", "allgather", "broadcast", "send", "recv", "abort"}


class Narrow:
    """A process group that has but what the bindings are relied on for."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        assert name in ALLOWED, name
        return getattr(self._inner, name)


@pytest.fixture(params=[2, 3])
def group(request, tmp_path):
    """Run a function on every rank, each a thread; ranks have met."""
    size = request.param
    members = [Composed(CommunicatorSpec(size), FACTS, "gloo") for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:

        def run(work):
            futures = [pool.submit(work, rank, member) for rank, member in enumerate(members)]
            return [future.result() for future in futures]

        run(lambda r, member: member.open(Rendezvous(str(tmp_path), r, size, 120.0)))
        for member in members:
            member._group = Narrow(member._group)
        yield size, run
        run(lambda r, member: member.close())


def equal(found, expected) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_pieces(group, even: bool, given: bool) -> None:
    size, run = group
    sizes = [3] * size if even else [random.randrange(4) for _ in range(size)]
    told = None if even else sizes
    whole = [torch.randint(-99, 99, (sum(sizes), 2)).float() for _ in range(size)]
    kept = [x.clone() for x in whole]
    outs = [torch.empty(n, 2) if given else None for n in sizes]
    found = run(lambda rank, group: group.reduce_scatter(whole[rank], told, outs[rank]))
    equal(found, torch.stack(whole).sum(0).split(sizes))
    equal(whole, kept)
    parts = [torch.randn(n, 2) for n in sizes]
    outs = [torch.empty(sum(sizes), 2) if given else None for _ in sizes]
    found = run(lambda rank, group: group.all_gather(parts[rank], told, outs[rank]))
    equal(found, [torch.cat(parts)] * size)
    assert not given or all(ours is out for ours, out in zip(found, outs, strict=True))


def test_exchanges(group) -> None:
    size, run = group
    table = [[random.randrange(3) for _ in range(size)] for _ in range(size)]
    inputs = [torch.randn(sum(row), 2) for row in table]
    pieces = [x.split(row) for x, row in zip(inputs, table, strict=True)]
    found = run(
        lambda rank, group: group.all_to_all(inputs[rank], table[rank], [r[rank] for r in table])
    )
    equal(found, [torch.cat([piece[rank] for piece in pieces]) for rank in range(size)])
    even = [torch.arange(size) + 10 * rank for rank in range(size)]
    outs = [torch.empty(size, dtype=torch.int64) for _ in range(size)]
    run(lambda rank, group: group.all_to_all(even[rank], out=outs[rank]))
    equal(outs, [torch.arange(size) * 10 + rank for rank in range(size)])


def test_rows_that_do_not_divide(group) -> None:
    size, run = group
    with pytest.raises(ValueError, match="do not divide"):
        run(lambda rank, group: group.reduce_scatter(torch.zeros(size + 1)))


def test_the_bindings_are_refused_where_they_are_missing(monkeypatch) -> None:
    verdict = communicator.supports(CommunicatorSpec(2), FACTS)
    assert verdict.reason == "package oneccl_bindings_for_pytorch is not installed"
    fake = types.ModuleType(communicator.PACKAGE)
    fake.__spec__ = importlib.machinery.ModuleSpec(communicator.PACKAGE, None)
    monkeypatch.setitem(sys.modules, communicator.PACKAGE, fake)
    assert communicator.supports(CommunicatorSpec(2), FACTS).score == 40
    built = communicator.build(CommunicatorSpec(2), FACTS)
    assert isinstance(built, Communicator) and built.size == 2


def test_a_registered_process_group_is_used(tmp_path, monkeypatch) -> None:
    made = []

    def create(store, rank, size, timeout):
        made.append((rank, size))
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    plugin = types.SimpleNamespace(creator_fn=create, extended_api=False)
    monkeypatch.setitem(dist.Backend._plugins, "CCL", plugin)
    alone = Composed(CommunicatorSpec(1), FACTS, "ccl")
    alone.open(Rendezvous(str(tmp_path), 0, 1, 60.0))
    assert made == [(0, 1)]
    alone.close()
