"""Memory for the results of a recorded step: results keep their addresses, and share memory.

While a step is recorded, its results are placed in one range, where the memory of one that has
died serves the next, as an allocator would do it. A replay then finds every result at its place.
All recordings of an engine start at the beginning of the same range, so they take no more than the
largest of them; `graph.py` records.
"""

from __future__ import annotations

import weakref
from bisect import insort
from math import prod

import torch
from torch import Tensor

ALIGNMENT = 64


class Arena:
    """A range of memory, resident as far as it was ever written.

    Args:
        nbytes: Its size.
    """

    def __init__(self, nbytes: int) -> None:
        self._memory = torch.empty(nbytes, dtype=torch.uint8).numpy()
        self._taken: list[tuple[int, int]] = []
        self.peak = 0

    def restart(self) -> None:
        """Begin a recording: whatever an earlier one placed may be overwritten."""
        self._taken = []
        self.peak = 0

    def empty(self, size: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """Place a result, whose memory is free again once its last view has died; None when the
        range has no room for it."""
        count = prod(size)
        nbytes = count * dtype.itemsize
        begin = self._gap(nbytes)
        if count == 0 or begin + nbytes > len(self._memory):
            return None
        place = (begin, begin + nbytes)
        taken = self._taken
        insort(taken, place)
        self.peak = max(self.peak, place[1])
        memory = self._memory[begin : begin + nbytes]
        weakref.finalize(memory, taken.remove, place).atexit = False
        return torch.frombuffer(memory, dtype=dtype).view(size)

    def alias(self, x: Tensor) -> Tensor:
        """Return a tensor over the same memory that takes no place in the arena, so that the place
        of a result is free again though a recording still knows it."""
        begin = x.data_ptr() - self._memory.ctypes.data
        if not (x.numel() and 0 <= begin < len(self._memory)):
            return x
        last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
        flat = torch.frombuffer(self._memory, dtype=x.dtype, offset=begin, count=last + 1)
        return flat.as_strided(x.shape, x.stride())

    def poison(self) -> None:
        """Overwrite all that was placed with a pattern that is NaN in every type of numbers."""
        self._memory[: self.peak] = 0xFF

    def _gap(self, nbytes: int) -> int:
        """Return the first place with room for so many bytes."""
        begin = 0
        for taken, end in self._taken:
            if begin + nbytes <= taken:
                break
            begin = -(-end // ALIGNMENT) * ALIGNMENT
        return begin
