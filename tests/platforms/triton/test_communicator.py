"""Communicators over PyTorch's process groups, here over the one library that needs no device."""

import pytest
import torch
import torch.distributed as dist
from tests.platforms.threads import check_exchanges, check_pieces, check_transfers, equal, met

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


def test_transfers(group) -> None:
    check_transfers(*group)


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


class OneAtATime:
    """Stands in for a library whose sends end with their receive, unless told together."""

    supports_coalescing = True

    def __init__(self) -> None:
        self.told: list[str] = []

    def _start_coalescing(self) -> None:
        self.told.append("(")

    def _end_coalescing(self) -> "OneAtATime":
        self.told.append(")")
        return self

    def send(self, tensors, to, tag) -> None:
        self.told.append(f"send {tensors[0].item()} to {to}")

    def recv(self, tensors, source, tag) -> None:
        self.told.append(f"recv {tensors[0].item()} from {source}")

    def broadcast(self, tensors, options) -> None:
        self.told.append("broadcast")

    def wait(self) -> None:
        self.told.append("wait")


def test_transfers_begin_together_and_before_the_next_collective() -> None:
    group = build_with("gloo")(CommunicatorSpec(2), FACTS)
    group._group = library = OneAtATime()
    send, recv = group.send(torch.tensor(5), 1), group.recv(torch.tensor(7), 1)
    assert library.told == []
    recv.wait()
    send.wait()
    assert library.told == ["(", "send 5 to 1", "recv 7 from 1", ")", "wait", "wait"]
    library.told.clear()
    recv, send = group.recv(torch.tensor(8), 1), group.send(torch.tensor(6), 1)
    send.wait()  # oneCCL goes through the list, and its receives wait there for their sends
    assert library.told == ["(", "send 6 to 1", "recv 8 from 1", ")", "wait"]
    library.told.clear()
    last = group.send(torch.tensor(9), 1)
    group.broadcast(torch.tensor(1), 0)
    assert library.told == ["(", "send 9 to 1", ")", "broadcast"]
    last.wait()
    assert library.told[-1] == "wait"


def one_by_one(rank: int, size: int) -> list[tuple[int, int]]:
    """Return senders and receivers in the order in which a rank begins its transfers."""
    order: list[tuple[int, int]] = []
    group = build_with("gloo")(CommunicatorSpec(size), FACTS)
    group._group = library = OneAtATime()
    group.rank = rank
    library.supports_coalescing = False
    library.send = lambda tensors, to, tag: order.append((rank, to))
    library.recv = lambda tensors, source, tag: order.append((source, rank))
    peers = [peer for peer in range(size) if peer != rank]
    pending = [group.send(torch.zeros(1), peer) for peer in peers]
    pending += [group.recv(torch.zeros(1), peer) for peer in peers]
    for transfer in pending:
        transfer.wait()
    return order


def test_transfers_that_begin_one_by_one_do_so_in_one_order_on_all_ranks() -> None:
    every = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    for rank in range(3):
        assert one_by_one(rank, 3) == [ends for ends in every if rank in ends]


def test_a_transfer_without_its_other_side_is_an_engine_error() -> None:
    group = build_with("gloo")(CommunicatorSpec(2), FACTS)
    group._group = library = OneAtATime()

    def lost(*_: object) -> None:
        raise RuntimeError("connection reset")

    library.send = lost
    with pytest.raises(EngineError, match="rank 0 lost the other ranks: connection reset"):
        group.send(torch.tensor(5), 1).wait()


def test_who_stays_alone_gives_up_before_a_library_waits_without_end(tmp_path, monkeypatch) -> None:
    alone = build_with("gloo")(CommunicatorSpec(2), FACTS)
    monkeypatch.setattr(alone, "_join", lambda *_: pytest.fail("the library was asked"))
    with pytest.raises(EngineError, match="could not meet the others"):
        alone.open(Rendezvous(str(tmp_path), 0, 2, 0.2))


def test_a_library_that_is_not_there_is_refused() -> None:
    assert supports_backend("gloo")(CommunicatorSpec(2), FACTS).accepted
    verdict = supports_backend("nowhere")(CommunicatorSpec(2), FACTS)
    assert not verdict.accepted and "built without nowhere" in verdict.reason
    assert supports_backend("nccl")(CommunicatorSpec(2), FACTS).accepted == dist.is_nccl_available()
