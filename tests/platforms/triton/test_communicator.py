"""Communicators over PyTorch's process groups, here over the one library that needs no device."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from hotshoe.errors import EngineError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import CommunicatorSpec, Rendezvous
from hotshoe_triton.communicator import build_with, supports_backend

FACTS = DeviceFacts("any", "cpu", "a test's device", "any", 1 << 30, 1)
TIMEOUT_S = 120.0


@pytest.fixture(params=[2, 3])
def group(request, tmp_path):
    """Run a function on every rank, each a thread; ranks have met."""
    size = request.param
    members = [build_with("gloo")(CommunicatorSpec(size), FACTS) for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:

        def run(work):
            futures = [pool.submit(work, rank, member) for rank, member in enumerate(members)]
            return [future.result() for future in futures]

        run(lambda r, member: member.open(Rendezvous(str(tmp_path), r, size, TIMEOUT_S)))
        yield size, run
        run(lambda r, member: member.close())


def equal(found, expected) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("rows", [0, 1, 6])
def test_sums(group, dtype, rows) -> None:
    size, run = group
    inputs = [torch.randint(-99, 99, (rows, 3)).to(dtype) for _ in range(size)]
    total = torch.stack(inputs).sum(0).to(dtype)
    kept = [x.clone() for x in inputs]
    equal(run(lambda rank, group: group.all_reduce(inputs[rank])), [total] * size)
    equal(inputs, kept)
    outs = [torch.empty_like(x) for x in inputs]
    run(lambda rank, group: group.all_reduce(inputs[rank], outs[rank]))
    equal(outs, [total] * size)
    run(lambda rank, group: group.all_reduce(inputs[rank], inputs[rank]))
    equal(inputs, [total] * size)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_pieces(group, even, given) -> None:
    size, run = group
    sizes = [3] * size if even else [random.randrange(4) for _ in range(size)]
    told = None if even else sizes
    whole = [torch.randint(-99, 99, (sum(sizes), 2)).float() for _ in range(size)]
    outs = [torch.empty(n, 2) if given else None for n in sizes]
    found = run(lambda rank, group: group.reduce_scatter(whole[rank], told, outs[rank]))
    equal(found, torch.stack(whole).sum(0).split(sizes))
    assert not given or all(ours is out for ours, out in zip(found, outs, strict=True))

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
    found = run(lambda rank, group: group.all_to_all(even[rank]))
    equal(found, [torch.arange(size) * 10 + rank for rank in range(size)])


def test_broadcasts_and_transfers(group) -> None:
    size, run = group
    for source in range(size):
        found = run(lambda rank, group, s=source: group.broadcast(torch.tensor([rank, 7]), s))
        equal(found, [torch.tensor([source, 7])] * size)

    def around(rank, group):
        out = torch.zeros(2)
        pending = [
            group.send(torch.tensor([rank, 1.0]), (rank + 1) % size),
            group.recv(out, (rank - 1) % size),
            group.send(torch.zeros(0), (rank + 1) % size),
            group.recv(torch.zeros(0), (rank - 1) % size),
        ]
        for transfer in pending:
            transfer.wait()
        return out

    equal(run(around), [torch.tensor([(rank - 1) % size, 1.0]) for rank in range(size)])


def test_who_stays_alone_gives_up(tmp_path) -> None:
    alone = build_with("gloo")(CommunicatorSpec(2), FACTS)
    with pytest.raises(EngineError, match="could not meet the others"):
        alone.open(Rendezvous(str(tmp_path), 0, 2, 0.2))


def test_a_library_that_is_not_there_is_refused() -> None:
    assert supports_backend("gloo")(CommunicatorSpec(2), FACTS).accepted
    verdict = supports_backend("nowhere")(CommunicatorSpec(2), FACTS)
    assert not verdict.accepted and "built without nowhere" in verdict.reason
    assert supports_backend("nccl")(CommunicatorSpec(2), FACTS).accepted == dist.is_nccl_available()
