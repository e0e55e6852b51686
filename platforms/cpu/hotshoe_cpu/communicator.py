"""Candidate `shared_memory` of slot `communicator`: ranks of one host over memory that they share.

The memory has no name in any file system: rank 0 makes it anonymously and the others open it
through rank 0's entry in /proc. So it vanishes with the last rank, however that one ends, and no
limit of /dev/shm applies. The collectives themselves are in C++ (`csrc/communicator`).
"""

import mmap
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import EngineError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import CommunicatorSpec, Rendezvous, Verdict, even_sizes, refuse
from hotshoe_cpu.native import judge, kernels
from hotshoe_native import MAX_RANKS

SUM_CODES = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.int32: 4,
    torch.int64: 5,
    torch.float64: 6,
}
#: With more than two ranks, larger sums are cheaper when each rank adds one piece of them.
PIECEWISE_BYTES = 1 << 18
#: How often a wait for a transfer looks for bytes before it sleeps between two looks.
EAGER_LOOKS = 2000
SLEEP_S = 50e-6


def supports(spec: CommunicatorSpec, facts: DeviceFacts) -> Verdict:
    """Judge the system and the number of ranks."""
    if sys.platform != "linux":
        return refuse(f"anonymous shared memory needs Linux, and this is {sys.platform}")
    if spec.across_hosts:
        return refuse("ranks of several hosts share no memory")
    too_many = spec.size > MAX_RANKS
    return judge(facts, "float32", {f"{spec.size} ranks are more than {MAX_RANKS}": too_many})


class Transfer:
    """See `hotshoe.slots.PendingTransfer`. `move` takes a step without waiting."""

    def __init__(self, peer: int, nbytes: int, move: Callable[[int], int]) -> None:
        self.peer = peer
        self._nbytes, self._moved, self._move = nbytes, 0, move
        self.wait: Callable[[], None]

    @property
    def done(self) -> bool:
        return self._moved == self._nbytes

    def advance(self) -> bool:
        """Move what can be moved, and tell whether that was anything."""
        step = self._move(self._moved)
        self._moved += step
        return step > 0


class Communicator:
    """See `hotshoe.slots.CommunicatorOp`.

    A transfer advances whenever this rank starts or waits for one; no thread works behind it.
    """

    def __init__(self, spec: CommunicatorSpec, facts: DeviceFacts) -> None:
        self._native = kernels(facts)
        self.rank, self.size = 0, spec.size
        self._handle: int | None = None
        self._pidfds: list[int] = []
        self._queues: dict[tuple[str, int], deque[Transfer]] = defaultdict(deque)

    def open(self, rendezvous: Rendezvous) -> None:
        self.rank, self._timeout_s = rendezvous.rank, rendezvous.timeout_s
        nbytes = self._native.group_nbytes(self.size)
        fd = -1
        if self.rank == 0:
            fd = os.memfd_create("hotshoe-group")
            os.ftruncate(fd, nbytes)
        try:
            ranks = meet(rendezvous, f"{os.getpid()} {fd}")
            if self.rank != 0:
                fd = os.open("/proc/{}/fd/{}".format(*ranks[0]), os.O_RDWR)
            self._memory = torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)
            self._handle = self._native.group_open(
                self._memory.data_ptr(), self.rank, self.size, rendezvous.timeout_s
            )
            self._pidfds = [watchable(pid) for pid, _ in ranks]
            self._native.group_watch(self._handle, self._pidfds)
            self.all_reduce(torch.zeros(1))  # everybody has opened it
        finally:
            if fd >= 0:
                os.close(fd)

    def all_reduce(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        out = torch.empty_like(x) if out is None else out
        count = x.numel()
        if self.size > 2 and x.nbytes >= PIECEWISE_BYTES:
            piece, rest = divmod(count, self.size)
            sizes = [piece + (rank < rest) for rank in range(self.size)]
            self.all_gather(self.reduce_scatter(x.view(-1), sizes), sizes, out.view(-1))
        else:
            self._reduce(out, x, 0, count)
        return out

    def all_gather(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        sizes = [x.shape[0]] * self.size if sizes is None else sizes
        out = _out(x, sum(sizes), out)
        nbytes = [size * _row_bytes(x) for size in sizes]
        self._gather(x, nbytes, [0] * self.size, nbytes, _addresses(out, nbytes))
        return out

    def reduce_scatter(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        sizes = even_sizes(x.shape[0], self.size) if sizes is None else sizes
        out = _out(x, sizes[self.rank], out)
        width = x.numel() // max(x.shape[0], 1)
        first = sum(sizes[: self.rank]) * width
        self._reduce(out, x, first, first + sizes[self.rank] * width)
        return out

    def all_to_all(
        self,
        x: Tensor,
        send_sizes: Sequence[int] | None = None,
        recv_sizes: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        send = even_sizes(x.shape[0], self.size) if send_sizes is None else send_sizes
        receive = even_sizes(x.shape[0], self.size) if recv_sizes is None else recv_sizes
        # Where in the others' messages this rank's pieces lie depends on what comes before them.
        table = self.all_gather(torch.tensor([send])) * _row_bytes(x)
        ends = table.cumsum(1)[:, self.rank].tolist()
        begins = [e - n for e, n in zip(ends, table[:, self.rank].tolist(), strict=True)]
        out = _out(x, sum(receive), out)
        outs = _addresses(out, [size * _row_bytes(x) for size in receive])
        self._gather(x, table.sum(1).tolist(), begins, ends, outs)
        return out

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        nbytes = [x.nbytes if rank == source else 0 for rank in range(self.size)]
        wanted = [0] * self.size if self.rank == source else nbytes
        self._gather(x, nbytes, [0] * self.size, wanted, [x.data_ptr()] * self.size)
        return x

    def send(self, x: Tensor, to: int) -> Transfer:
        push, group, begin, nbytes = self._native.group_push, self._group(), x.data_ptr(), x.nbytes
        return self._start(
            "send", Transfer(to, nbytes, lambda at: push(group, to, begin + at, nbytes - at)), x
        )

    def recv(self, out: Tensor, source: int) -> Transfer:
        pull, group, begin = self._native.group_pull, self._group(), out.data_ptr()
        nbytes = out.nbytes
        move = Transfer(source, nbytes, lambda at: pull(group, source, begin + at, nbytes - at))
        return self._start("recv", move, out)

    def close(self) -> None:
        if self._handle is not None:
            self._native.group_close(self._handle)
            self._handle = None
            self._queues.clear()
            del self._memory
            for fd in self._pidfds:
                if fd >= 0:
                    os.close(fd)

    def _reduce(self, out: Tensor, x: Tensor, begin: int, end: int) -> None:
        self._call(
            self._native.group_reduce,
            out.data_ptr(),
            x.data_ptr(),
            x.numel(),
            begin,
            end,
            SUM_CODES[x.dtype],
        )

    def _gather(self, x: Tensor, *ranges: Sequence[int]) -> None:
        self._call(self._native.group_gather, x.data_ptr(), *ranges)

    def _group(self) -> int:
        """Return the native group, whose memory is gone once it is closed."""
        if self._handle is None:
            raise EngineError(f"rank {self.rank} is in no group: it was closed, or never opened")
        return self._handle

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            function(self._group(), *arguments)
        except RuntimeError as error:
            raise EngineError(f"rank {self.rank} lost the other ranks: {error}") from None

    def _start(self, kind: str, transfer: Transfer, alive: Tensor) -> Transfer:
        queue = self._queues[kind, transfer.peer]
        queue.append(transfer)

        def wait() -> None:
            self._finish(transfer, alive)

        transfer.wait = wait
        self._advance()
        return transfer

    def _advance(self) -> bool:
        """Move the oldest transfer of each queue, and those behind it once it is done."""
        moved = False
        for queue in self._queues.values():
            while queue:
                moved |= queue[0].advance()
                if not queue[0].done:
                    break
                queue.popleft()
        return moved

    def _finish(self, transfer: Transfer, alive: Tensor) -> None:
        """Advance all transfers until this one is done; its tensor must be `alive` till then."""
        looks, deadline = 0, time.monotonic() + self._timeout_s
        while not transfer.done:
            if self._advance():
                looks, deadline = 0, time.monotonic() + self._timeout_s
                continue
            looks += 1
            if looks <= EAGER_LOOKS:
                continue
            self._call(self._native.group_check, transfer.peer)
            if time.monotonic() > deadline:
                raise EngineError(f"rank {transfer.peer} did not come within {self._timeout_s:g} s")
            time.sleep(SLEEP_S)


def meet(rendezvous: Rendezvous, note: str) -> list[tuple[int, int]]:
    """Leave a process id and a number for the other ranks; return everyone's.

    Raises:
        EngineError: A rank did not come in time.
    """
    folder = Path(rendezvous.directory)
    draft = folder / f"draft-{rendezvous.rank}"
    draft.write_text(note)
    draft.rename(folder / f"rank-{rendezvous.rank}")
    deadline = time.monotonic() + rendezvous.timeout_s
    found = []
    for rank in range(rendezvous.size):
        path = folder / f"rank-{rank}"
        while not path.exists():
            if time.monotonic() > deadline:
                raise EngineError(f"rank {rank} did not come within {rendezvous.timeout_s:g} s")
            time.sleep(0.001)
        pid, number = path.read_text().split()
        found.append((int(pid), int(number)))
    return found


def watchable(pid: int) -> int:
    """Return a descriptor that tells when a process ends, -1 for oneself or where there is none."""
    if pid == os.getpid():
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:  # kernels before 5.3; whoever started the ranks watches them too
        return -1


def _row_bytes(x: Tensor) -> int:
    return int(torch.Size(x.shape[1:]).numel()) * x.itemsize


def _out(x: Tensor, rows: int, out: Tensor | None) -> Tensor:
    return torch.empty((rows, *x.shape[1:]), dtype=x.dtype) if out is None else out


def _addresses(out: Tensor, nbytes: Sequence[int]) -> list[int]:
    """Return where each rank's piece goes."""
    base = out.data_ptr()
    return [base + sum(nbytes[:rank]) for rank in range(len(nbytes))]
