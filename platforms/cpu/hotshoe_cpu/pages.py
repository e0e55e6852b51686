"""Memory of weights in large pages: matrices lie one behind another in aligned blocks.

A matrix of a megabyte or two has no large page of its own, and a processor that reads it waits at
the end of every small page. So matrices share blocks; a block is given back with the last of them.
"""

from __future__ import annotations

from threading import Lock
from types import ModuleType

import torch
from torch import Tensor

PAGE_BYTES = 2 << 20
#: Matrices of half the size or more have a block to themselves.
BLOCK_BYTES = 16 << 20
#: Between two matrices; no line of a processor's cache is longer.
LINE_BYTES = 128


class Blocks:
    """Gives out memory from the last block, or from a new one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rest = torch.empty(0, dtype=torch.uint8)

    def take(self, native: ModuleType, nbytes: int) -> Tensor:
        """Return memory [nbytes] uint8, whatever is in it, on a line of its own."""
        if 2 * nbytes >= BLOCK_BYTES:
            return _aligned(native, nbytes)
        with self._lock:
            if nbytes > len(self._rest):
                self._rest = _aligned(native, BLOCK_BYTES)
            found, end = self._rest[:nbytes], -(-nbytes // LINE_BYTES) * LINE_BYTES
            self._rest = self._rest[end:]
        return found


#: Of this process.
BLOCKS = Blocks()


def _aligned(native: ModuleType, nbytes: int) -> Tensor:
    """Return memory that begins with a large page."""
    block = torch.empty(nbytes + PAGE_BYTES, dtype=torch.uint8)
    first = -block.data_ptr() % PAGE_BYTES
    native.advise_huge_pages(block.data_ptr() + first, nbytes)
    return block[first : first + nbytes]
