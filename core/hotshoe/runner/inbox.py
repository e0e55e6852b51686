"""Carries a step's host arrays to the device in one copy.

Arrays of equal shapes always arrive at the same addresses, so that a recorded step can read them.
Host memory is a ring, since the copies of steps in flight may not have been read yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hotshoe.slots import TransferOp

Array = npt.NDArray[np.int32] | npt.NDArray[np.int64]

ALIGNMENT_BYTES = 16
#: Sizes of steps whose places are kept: decode steps repeat few of them, prompts have many.
MAX_KNOWN = 256
DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}


class Inbox:
    """Staging memory on both sides.

    Args:
        transfer: Chosen candidate of slot `transfer`.
        device: Where arrays go.
        nbytes: Device memory at a fixed address; a larger step gets memory of its own.
        max_steps_in_flight: Steps that may have been started and not finished.
    """

    def __init__(
        self, transfer: TransferOp, device: str, nbytes: int, max_steps_in_flight: int
    ) -> None:
        self._transfer = transfer
        self._device_memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._host = [transfer.host_buffer(nbytes) for _ in range(max_steps_in_flight + 1)]
        self._next = 0
        self._known: dict[tuple[int, ...], tuple[list[int], list[Tensor]]] = {}

    def stage(self, arrays: Sequence[Array]) -> tuple[list[Tensor], bool]:
        """Start copying. The n-th array always has the same type.

        Returns:
            The arrays' device form, valid until the next call, and whether they are at their fixed
            addresses.
        """
        offsets, views = self._placed(arrays)
        total = offsets[-1]
        host, device = self._host[self._next], self._device_memory
        if total > len(host):
            host = self._host[self._next] = self._transfer.host_buffer(2 * total)
        in_place = total <= len(device)
        if not in_place:
            device = device.new_empty(total)
            views = _views(device, offsets, arrays)
        self._next = (self._next + 1) % len(self._host)
        packed = host.numpy()
        for offset, array in zip(offsets, arrays, strict=False):
            packed[offset : offset + array.nbytes] = array.view(np.uint8)
        self._transfer.upload(host[:total], device[:total])
        return views, in_place

    def _placed(self, arrays: Sequence[Array]) -> tuple[list[int], list[Tensor]]:
        """Return where arrays of such sizes lie, and their device form where all of them fit."""
        sizes = tuple([array.nbytes for array in arrays])
        if sizes not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            lengths = [-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes]
            offsets = [0, *accumulate(lengths)]
            fits = offsets[-1] <= len(self._device_memory)
            self._known[sizes] = (
                offsets,
                _views(self._device_memory, offsets, arrays) if fits else [],
            )
        return self._known[sizes]


def _views(memory: Tensor, offsets: Sequence[int], arrays: Sequence[Array]) -> list[Tensor]:
    """Return each array's part of a memory, in its type."""
    return [
        memory[offset : offset + array.nbytes].view(DTYPES[array.dtype])
        for offset, array in zip(offsets, arrays, strict=False)
    ]
