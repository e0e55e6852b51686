"""The ranks of a group, as layers know them, and a time in which none asks another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from hotshoe.slots import (
    CommunicatorOp,
    PendingTransfer,
    RehearsedCommunicatorOp,
    Rendezvous,
    even_sizes,
)


class Group:
    """See `hotshoe.slots.CommunicatorOp`: the chosen one, or while it is quiet none of the ranks.

    Layers hold on to its methods, so that these look up who answers.

    Args:
        op: The chosen operation.
        size: How many ranks there are.
    """

    def __init__(self, op: CommunicatorOp, size: int) -> None:
        self._op = self._now = op
        self.rank, self.size = 0, size

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Ask no other rank for a time: a step's exchanges return at once, in the right shapes."""
        self._now = Quiet(self._op)
        try:
            yield
        finally:
            self._now = self._op

    def open(self, rendezvous: Rendezvous) -> None:
        self._op.open(rendezvous)
        self.rank = self._op.rank

    def all_reduce(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self._now.all_reduce(x, out)

    def all_gather(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        return self._now.all_gather(x, sizes, out)

    def reduce_scatter(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        return self._now.reduce_scatter(x, sizes, out)

    def all_to_all(
        self,
        x: Tensor,
        send_sizes: Sequence[int] | None = None,
        recv_sizes: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        return self._now.all_to_all(x, send_sizes, recv_sizes, out)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return self._now.broadcast(x, source)

    def send(self, x: Tensor, to: int) -> PendingTransfer:
        return self._now.send(x, to)

    def recv(self, out: Tensor, source: int) -> PendingTransfer:
        return self._now.recv(out, source)

    def close(self) -> None:
        self._op.close()


class Quiet:
    """See `hotshoe.slots.CommunicatorOp`: one whose other ranks bring nothing but zeros.

    Args:
        op: Whose kernels are to be met.
    """

    def __init__(self, op: CommunicatorOp) -> None:
        self.rank, self.size = op.rank, op.size
        self._meets = op.rehearse if isinstance(op, RehearsedCommunicatorOp) else None

    def open(self, rendezvous: Rendezvous) -> None:
        """Meet nobody."""

    def all_reduce(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        if self._meets is not None:
            self._meets(x)
        return x.clone() if out is None else out if out is x else out.copy_(x)

    def all_gather(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        return _given(x, x.shape[0] * self.size if sizes is None else sum(sizes), out)

    def reduce_scatter(
        self, x: Tensor, sizes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        sizes = even_sizes(x.shape[0], self.size) if sizes is None else sizes
        return _given(x, sizes[self.rank], out)

    def all_to_all(
        self,
        x: Tensor,
        send_sizes: Sequence[int] | None = None,
        recv_sizes: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        return _given(x, x.shape[0] if recv_sizes is None else sum(recv_sizes), out)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return x

    def send(self, x: Tensor, to: int) -> PendingTransfer:
        return Nothing()

    def recv(self, out: Tensor, source: int) -> PendingTransfer:
        out.zero_()
        return Nothing()

    def close(self) -> None:
        """Leave nobody."""


class Nothing:
    """See `hotshoe.slots.PendingTransfer`."""

    def wait(self) -> None:
        """Wait for nothing."""


def _given(x: Tensor, rows: int, out: Tensor | None) -> Tensor:
    return x.new_zeros((rows, *x.shape[1:])) if out is None else out.zero_()
