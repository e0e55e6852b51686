"""Reference of slot `communicator`: bytes over gloo's connections, sums on the host.

Tensors of a device are staged through host memory, so it serves every device, slowly. Ranks of one
host meet through a file and connect by the loopback interface, those of several through a store.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from hotshoe.errors import EngineError
from hotshoe.platform import DeviceFacts
from hotshoe.slots.rendezvous import Rendezvous, even_sizes
from hotshoe.slots.specs import CommunicatorSpec

#: Typed as anything, as its stubs leave out what is used here.
dist: Any = torch.distributed
LOOPBACK = "127.0.0.1"
#: Types whose sums are taken in a wider one and rounded at the end.
WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


class Transfer:
    """See `hotshoe.slots.PendingTransfer`."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


class Communicator:
    """See `hotshoe.slots.CommunicatorOp`."""

    def __init__(self, spec: CommunicatorSpec, facts: DeviceFacts) -> None:
        self.rank, self.size = 0, spec.size
        self._group: Any = None

    def open(self, rendezvous: Rendezvous) -> None:
        self.rank = rendezvous.rank
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=rendezvous.timeout_s)
        own = own_address(rendezvous.address) if rendezvous.address else LOOPBACK
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=own)]
        try:
            store = open_store(rendezvous, "gloo")
            self._group = dist.ProcessGroupGloo(store, self.rank, self.size, options)
        except RuntimeError as error:
            raise self._lost(error) from None

    def all_reduce(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        parts = self._gather(x.reshape(-1), [x.numel()] * self.size)
        total = parts[0].to(WIDER.get(x.dtype, x.dtype), copy=True)
        for part in parts[1:]:
            total += part
        return _give(total.to(x.dtype).view(x.shape), x, out)

    def all_gather(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        parts = self._gather(x, sizes or [x.shape[0]] * self.size)
        return _give(torch.cat(parts), x, out)

    def reduce_scatter(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        sizes = sizes or even_sizes(x.shape[0], self.size)
        first = sum(sizes[: self.rank])
        piece = self.all_reduce(x)[first : first + sizes[self.rank]]
        return _give(piece, x, out)

    def all_to_all(
        self,
        x: Tensor,
        send_sizes: Sequence[int] | None = None,
        recv_sizes: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        send = send_sizes or even_sizes(x.shape[0], self.size)
        receive = recv_sizes or even_sizes(x.shape[0], self.size)
        width = row_bytes(x)
        found = torch.empty((sum(receive), *x.shape[1:]), dtype=x.dtype)
        splits = [[count * width for count in counts] for counts in (receive, send)]
        self._wait(self._group.alltoall_base(_bytes(found), _bytes(x), *splits))
        return _give(found, x, out)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        if x.numel() == 0:
            return x
        raw = _bytes(x)
        options = dist.BroadcastOptions()
        options.rootRank = source
        self._wait(self._group.broadcast([raw], options))
        return x.copy_(_tensor(raw, x)) if self.rank != source else x

    def send(self, x: Tensor, to: int) -> Transfer:
        if x.numel() == 0:
            return Transfer(lambda: None)
        raw = _bytes(x)
        work = self._group.send([raw], to, 0)
        return Transfer(lambda: self._wait(work, raw))

    def recv(self, out: Tensor, source: int) -> Transfer:
        if out.numel() == 0:
            return Transfer(lambda: None)
        raw = torch.empty(out.nbytes, dtype=torch.uint8)
        work = self._group.recv([raw], source, 0)

        def wait() -> None:
            self._wait(work)
            out.copy_(_tensor(raw, out))

        return Transfer(wait)

    def close(self) -> None:
        if self._group is not None:
            self._group.abort()
            self._group = None

    def _gather(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Return every rank's rows, on the host. Gloo wants equal sizes: the longest is one."""
        width = row_bytes(x)
        longest = max(sizes) * width
        found = [torch.empty((size, *x.shape[1:]), dtype=x.dtype) for size in sizes]
        if longest == 0:
            return found
        raw = torch.zeros(longest, dtype=torch.uint8)
        raw[: x.nbytes] = _bytes(x)
        pieces = [torch.empty_like(raw) for _ in sizes]
        self._wait(self._group.allgather([pieces], [raw]))
        for tensor, piece in zip(found, pieces, strict=True):
            tensor.copy_(_tensor(piece[: tensor.nbytes], tensor))
        return found

    def _wait(self, work: Any, *alive: Tensor) -> None:
        """Wait; `alive` are tensors that must not go before."""
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(error) from None

    def _lost(self, error: RuntimeError) -> EngineError:
        # [place in gloo's sources] what happened [address]. Advice.
        cause = re.sub(r"\s*\[[^]]*\]\s*", " ", str(error)).partition("\n")[0].partition(". ")[0]
        return EngineError(f"rank {self.rank} lost the other ranks: {cause.strip()}")


def open_store(rendezvous: Rendezvous, name: str) -> Any:
    """See `hotshoe.slots.Rendezvous.open_store`."""
    timeout = timedelta(seconds=rendezvous.timeout_s)
    if not rendezvous.address:
        store = dist.FileStore(str(Path(rendezvous.directory) / name), rendezvous.size)
        store.set_timeout(timeout)
        return store
    host, _, port = rendezvous.address.rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=False, timeout=timeout)
    return dist.PrefixStore(f"{rendezvous.name}/{name}", store)


def serve_store(rendezvous: Rendezvous) -> Any:
    """Have the store at the address of ranks that are on several hosts, as long as it is held.

    Raises:
        EngineError: Something else listens there.
    """
    host, _, port = rendezvous.address.rpartition(":")
    timeout = timedelta(seconds=rendezvous.timeout_s)
    try:
        return dist.TCPStore(
            host, int(port), is_master=True, timeout=timeout, wait_for_workers=False
        )
    except RuntimeError as error:
        raise EngineError(f"no store at {rendezvous.address}: {error}") from None


def own_address(address: str) -> str:
    """Return this host's address on the way to another, `HOST:PORT`."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


def row_bytes(x: Tensor) -> int:
    """Return the bytes of one row of x."""
    return int(torch.Size(x.shape[1:]).numel()) * x.itemsize


def _bytes(x: Tensor) -> Tensor:
    """Return x's bytes on the host."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _tensor(raw: Tensor, like: Tensor) -> Tensor:
    return raw.view(like.dtype).view(like.shape)


def _give(found: Tensor, x: Tensor, out: Tensor | None) -> Tensor:
    """Bring a result from the host to where it is wanted."""
    return found.to(x.device) if out is None else out.copy_(found)
