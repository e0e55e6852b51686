"""Candidates of slot `communicator` over a vendor's library, through PyTorch's process groups.

The library is named as PyTorch names it: "nccl" is NCCL on one vendor's devices and RCCL on
another's, "xccl" is oneCCL. Everything runs down the current stream and waits for nothing on the
host, so it can be recorded. Uneven pieces are padded, which every library can do.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    ReduceScatterOptions,
)

from hotshoe.errors import EngineError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import CommunicatorSpec, Rendezvous, Verdict, accept, even_sizes, refuse

SCORE = 50
#: PyTorch ends a process whose collective is lost, but first waits four times this for a record of
#: it, a minute if it is not told.
ENDING = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250"}


def supports_backend(backend: str) -> Callable[[CommunicatorSpec, DeviceFacts], Verdict]:
    """Judge by what this build of PyTorch holds."""

    def supports(spec: CommunicatorSpec, facts: DeviceFacts) -> Verdict:
        if not dist.is_backend_available(backend) or _group_class(backend) is None:
            return refuse(f"PyTorch {torch.__version__} was built without {backend}")
        return accept(SCORE, f"{backend} through PyTorch")

    return supports


def build_with(backend: str) -> Callable[[CommunicatorSpec, DeviceFacts], "Communicator"]:
    """Return what builds the operation over one library."""
    return lambda spec, facts: Communicator(spec, facts, backend)


def _group_class(backend: str) -> Any:
    names = {f"ProcessGroup{backend.upper()}", f"ProcessGroup{backend.title()}"}
    found = next((getattr(dist, name) for name in names if hasattr(dist, name)), None)
    if found is None and backend.upper() in dist.Backend._plugins:  # of a package of its own
        return dist.Backend._plugins[backend.upper()].creator_fn
    return found


class Pending:
    """See `hotshoe.slots.PendingTransfer`. Waiting orders the device's work, not the host's.

    Args:
        start: Begins the transfer; its result is what to wait for.
        group: Who holds it back until it is waited for.
        ends: The ranks that send and receive.
        alive: The tensor, which must outlive the transfer.
    """

    def __init__(
        self, start: Callable[[], Any], group: "Communicator", ends: tuple[int, int], alive: Tensor
    ) -> None:
        self.start, self.work = start, None
        self.ends = ends
        self._group, self._alive = group, alive

    def wait(self) -> None:
        self._group.exchange()
        if self.work is not None:
            with self._group.watching():
                self.work.wait()


class Communicator:
    """See `hotshoe.slots.CommunicatorOp`.

    Args:
        spec: The group.
        facts: The device.
        backend: The library, as PyTorch names it.
    """

    def __init__(self, spec: CommunicatorSpec, facts: DeviceFacts, backend: str) -> None:
        self.rank, self.size = 0, spec.size
        self._device = torch.device(facts.device)
        self._backend = backend
        self._group: Any = None
        self._held: list[Pending] = []

    def open(self, rendezvous: Rendezvous) -> None:
        self.rank = rendezvous.rank
        timeout = timedelta(seconds=rendezvous.timeout_s)
        for name, value in ENDING.items():
            os.environ.setdefault(name, value)
        try:
            store = rendezvous.open_store(self._backend)
            # A library waits for the others without end, so all must be there before it is asked.
            store.set(f"here {self.rank}", "")
            store.wait([f"here {rank}" for rank in range(self.size)])
            self._group = self._join(store, timeout)
            # Connections are made here, as none can be made while a step is recorded.
            self.all_reduce(torch.zeros(1, device=self._device)).cpu()
        except RuntimeError as error:
            raise EngineError(f"rank {self.rank} could not meet the others: {error}") from None

    def _join(self, store: dist.Store, timeout: timedelta) -> Any:
        return _group_class(self._backend)(store, self.rank, self.size, timeout)

    def all_reduce(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        out = x.clone() if out is None else out if out is x else out.copy_(x)
        if out.numel():
            self._run(self._group.allreduce, [out], AllreduceOptions())
        return out

    def all_gather(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        longest = x.shape[0] if sizes is None else max(sizes)
        even = sizes is None or min(sizes) == longest
        if out is None:
            out = x.new_empty((longest * self.size if even else sum(sizes or ()), *x.shape[1:]))
        if out.numel() == 0:
            return out
        if even:
            self._run(self._group._allgather_base, out, x, AllgatherOptions())
            return out
        found = x.new_empty((self.size * longest, *x.shape[1:]))
        self._run(self._group._allgather_base, found, _padded(x, longest), AllgatherOptions())
        parts = zip(found.split(longest), sizes or (), strict=True)
        return torch.cat([part[:n] for part, n in parts], out=out)

    def reduce_scatter(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        sizes = even_sizes(x.shape[0], self.size) if sizes is None else list(sizes)
        longest, own = max(sizes), sizes[self.rank]
        out = x.new_empty((own, *x.shape[1:])) if out is None else out
        if x.numel() == 0:
            return out
        even = min(sizes) == longest
        if not even:
            x = torch.cat([_padded(part, longest) for part in x.split(sizes)])
        found = out if even else x.new_empty((longest, *x.shape[1:]))
        self._run(self._group._reduce_scatter_base, found, x, ReduceScatterOptions())
        return out if even else out.copy_(found[:own])

    def all_to_all(
        self,
        x: Tensor,
        send_sizes: Sequence[int] | None = None,
        recv_sizes: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        send = even_sizes(x.shape[0], self.size) if send_sizes is None else list(send_sizes)
        receive = even_sizes(x.shape[0], self.size) if recv_sizes is None else list(recv_sizes)
        out = x.new_empty((sum(receive), *x.shape[1:])) if out is None else out
        self._run(self._group.alltoall_base, out, x, receive, send, AllToAllOptions())
        return out

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        if x.numel():
            options = BroadcastOptions()
            options.rootRank = source
            self._run(self._group.broadcast, [x], options)
        return x

    def send(self, x: Tensor, to: int) -> Pending:
        return self._begin(x, (self.rank, to), lambda: self._group.send([x], to, 0))

    def recv(self, out: Tensor, source: int) -> Pending:
        return self._begin(out, (source, self.rank), lambda: self._group.recv([out], source, 0))

    def _begin(self, x: Tensor, ends: tuple[int, int], start: Callable[[], Any]) -> Pending:
        pending = Pending(start, self, ends, x)
        if x.numel():
            self._held.append(pending)
        return pending

    def exchange(self) -> None:
        """Start the transfers asked for so far, as one where the library can.

        It runs what it is told one after the other, and a send ends with its receive: of two ranks
        that both send first, neither would get to receive. oneCCL takes many as one, but goes
        through them in order, and a receive waits for its send; so sends come first. Where nothing
        is taken as one, all ranks go through the pairs in one order, so that none wait in a circle.
        """
        held, self._held = self._held, []
        if not held:
            return
        as_one = self._group.supports_coalescing
        held.sort(key=self._receives if as_one else _by_pair)
        with self.watching():
            if as_one:
                self._group._start_coalescing()
            works = [pending.start() for pending in held]
            if as_one:
                works = [self._group._end_coalescing()] * len(held)
        for pending, work in zip(held, works, strict=True):
            pending.work = work

    def _receives(self, pending: Pending) -> bool:
        return pending.ends[1] == self.rank

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Say which rank lost the others when a library reports it."""
        try:
            yield
        except RuntimeError as error:
            raise EngineError(f"rank {self.rank} lost the other ranks: {error}") from None

    def close(self) -> None:
        if self._group is not None:
            self._group.abort()
            self._group = None

    def _run(self, collective: Callable[..., Any], *arguments: Any) -> None:
        """Call a collective; its last argument are its options."""
        arguments[-1].asyncOp = False  # on the current stream itself
        self.exchange()
        with self.watching():
            work = collective(*arguments)
            if work is not None:
                work.wait()


def _by_pair(pending: Pending) -> tuple[int, int, bool]:
    sender, receiver = pending.ends
    return min(pending.ends), max(pending.ends), sender > receiver


def _padded(x: Tensor, rows: int) -> Tensor:
    if x.shape[0] == rows:
        return x
    return torch.cat([x, x.new_zeros((rows - x.shape[0], *x.shape[1:]))])
