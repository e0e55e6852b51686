"""Carries a step's host arrays to the device in one copy.

Arrays of equal shapes always arrive at the same addresses, so that a recorded step can read them.
Host memory is a ring, since the copies of steps in flight may not have been read yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hotshoe.slots import TransferOp

Array = npt.NDArray[np.int32] | npt.NDArray[np.int64]
#: Of a step's arrays: device memory, where each array begins and the last one ends, each array's
#: part of the memory.
Places: TypeAlias = tuple[Tensor, list[int], list[Tensor]]
#: Where arrays that are not empty lie in host memory, by number, and all that is copied.
Packed: TypeAlias = tuple[list[tuple[int, Array]], Tensor, Tensor]

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
        self._known: dict[tuple[int, ...], Places] = {}
        self._packed: dict[tuple[int, tuple[int, ...]], Packed] = {}

    def stage(self, arrays: Sequence[Array]) -> tuple[list[Tensor], bool]:
        """Start copying. The n-th array always has the same type.

        Returns:
            The arrays' device form, valid until the next call, and whether they are at their fixed
            addresses.
        """
        sizes = tuple([array.nbytes for array in arrays])
        places = self._known.get(sizes)
        if places is None:
            places = _laid_out(self._device_memory, arrays)
            if places[0] is self._device_memory:
                self._keep(sizes, places)
        number, self._next = self._next, (self._next + 1) % len(self._host)
        packed = self._packed.get((number, sizes))
        if packed is None:
            packed = self._pack(number, places, arrays)
            if sizes in self._known:
                self._packed[number, sizes] = packed
        parts, source, target = packed
        for at, part in parts:
            part[...] = arrays[at]
        self._transfer.upload(source, target)
        return places[2], places[0] is self._device_memory

    def _keep(self, sizes: tuple[int, ...], places: Places) -> None:
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
            self._packed.clear()
        self._known[sizes] = places

    def _pack(self, number: int, places: Places, arrays: Sequence[Array]) -> Packed:
        """Return where arrays go in one of the host's buffers."""
        memory, offsets, _ = places
        host, total = self._host[number], offsets[-1]
        if total > len(host):  # those that lie at fixed addresses keep the one before
            host = self._host[number] = self._transfer.host_buffer(2 * total)
        flat = host.numpy()
        spans = [(at, x, offsets[at]) for at, x in enumerate(arrays) if x.size]
        parts = [(at, flat[first : first + x.nbytes].view(x.dtype)) for at, x, first in spans]
        return parts, host[:total], memory[:total]


def _laid_out(memory: Tensor, arrays: Sequence[Array]) -> Places:
    """Return where arrays lie, in a memory of their own if this one is too small."""
    offsets = [0, *accumulate(-(-x.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for x in arrays)]
    memory = memory if offsets[-1] <= len(memory) else memory.new_empty(offsets[-1])
    parts = zip(offsets, arrays, strict=False)
    views = [memory[at : at + x.nbytes].view(DTYPES[x.dtype]) for at, x in parts]
    return memory, offsets, views
