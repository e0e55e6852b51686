"""Reads a checkpoint's large tensors ahead of their use, in parallel, straight to a device.

Threads read pieces of files into host memory that the device reads by itself. From there a piece is
copied while the next ones are read. A layer gets a tensor that lies on the device. Small tensors,
and integers, which layers look into, are views of the file as ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self

import torch
from torch import Tensor

from hotshoe.errors import MemoryLimitError
from hotshoe.loader.sources import Files
from hotshoe.slots import TransferOp

#: Bytes of a piece. Pieces of 16 MiB take a core some 2 ms, and a disk no seek to speak of.
PIECE_BYTES = 16 << 20
#: Pieces that there is memory for.
PIECES = 16
READERS = 8
#: Smaller tensors are not worth a copy of their own.
LARGE_BYTES = 1 << 20


class Piece(NamedTuple):
    """Bytes of a tensor, from `begin` on."""

    name: str
    begin: int
    nbytes: int


class Ahead:
    """A source like `Files`, for a device that is not the host. Close it behind its use.

    Args:
        files: The checkpoint.
        names: All tensors that will be asked for, in that order. One that is asked for otherwise
            comes as a view.
        transfer: Copies to the device.
        device: Where tensors are wanted.

    Raises:
        MemoryLimitError: The host has no memory for what is read ahead.
    """

    def __init__(
        self, files: Files, names: Sequence[str], transfer: TransferOp, device: str
    ) -> None:
        self._files, self._transfer, self._device = files, transfer, device
        self._large = {name for name in names if self._is_large(files.tensor(name))}
        self._coming = deque(piece for name in names for piece in self._pieces(name))
        self._reading: deque[tuple[Piece, Tensor, Future[None]]] = deque()
        try:
            room = transfer.host_buffer(min(PIECES, len(self._coming)) * PIECE_BYTES)
        except RuntimeError as error:
            raise MemoryLimitError(
                f"the host grants no {PIECES * PIECE_BYTES >> 20} MiB of memory that the device "
                f"reads, to read the checkpoint ({error}); free some"
            ) from error
        self._pool = ThreadPoolExecutor(READERS, "read-weights")
        for buffer in torch.split(room, PIECE_BYTES):
            self._read(buffer, lambda: ())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._transfer.download([])()  # then nothing reads the memory that goes now

    def names(self) -> Iterable[str]:
        """Return the names, as `Files` has them."""
        return self._files.names()

    def tensor(self, name: str) -> Tensor:
        """Return a large tensor of numbers with fractions on the device, and others as views."""
        tensor = self._files.tensor(name)
        if name not in self._large:
            return tensor
        there = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        flat, arrived = there.view(-1).view(torch.uint8), 0
        while self._reading and self._reading[0][0].name == name:
            piece, buffer, done = self._reading.popleft()
            done.result()
            part = flat[piece.begin : piece.begin + piece.nbytes]
            self._transfer.upload(buffer[: piece.nbytes], part)
            self._read(buffer, self._transfer.download([]))
            arrived += piece.nbytes
        return there if arrived == tensor.nbytes else tensor

    def taken(self, name: str) -> None:
        """See `Files`."""
        self._files.taken(name)

    def _is_large(self, tensor: Tensor) -> bool:
        return tensor.is_floating_point() and tensor.nbytes >= LARGE_BYTES

    def _pieces(self, name: str) -> list[Piece]:
        if name not in self._large:
            return []
        size = self._files.tensor(name).nbytes
        starts = range(0, size, PIECE_BYTES)
        return [Piece(name, begin, min(PIECE_BYTES, size - begin)) for begin in starts]

    def _read(self, buffer: Tensor, free: Callable[[], object]) -> None:
        """Have the next piece read into memory, as soon as that is free."""
        if not self._coming:
            return
        piece = self._coming.popleft()
        target = memoryview(buffer[: piece.nbytes].numpy())  # type: ignore[arg-type]

        def read() -> None:
            free()
            self._files.read(piece.name, piece.begin, target)

        self._reading.append((piece, buffer, self._pool.submit(read)))
