"""Communicators over PyTorch's process groups, here over the one library that needs no device."""

import pytest
import torch
import torch.distributed as dist
from tests.platforms.threads import check_exchanges, check_pieces, equal, met

from hotshoe.errors import EngineError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import CommunicatorSpec, Rendezvous
from hotshoe_triton.communicator import build_with, supports_backend

FACTS = DeviceFacts("any", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.fixture(params=[2, 3])
def group(request, tmp_path):
    """The number of ranks, and what runs a function on all; they have met."""
    size = request.param
    members = [build_with("gloo")(CommunicatorSpec(size), FACTS) for _ in range(size)]
    with met(members, tmp_path) as run:
        yield size, run


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
    check_pieces(*group, even, given)


def test_exchanges(group) -> None:
    check_exchanges(*group)


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
