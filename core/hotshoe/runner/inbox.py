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
#: Of a step's arrays: their parts of the device's memory; where those that are not empty lie on the
#: host, by number; what is copied from there, and where to; whether that is the fixed address.
Layout: TypeAlias = tuple[list[Tensor], list[tuple[int, Array]], Tensor, Tensor, bool]

ALIGNMENT_BYTES = 16
#: Layouts that are kept: decode steps repeat few of them, prompts have many.
MAX_KNOWN = 768
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
        self._known: dict[tuple[int, ...], Layout] = {}

    def stage(self, arrays: Sequence[Array]) -> tuple[list[Tensor], bool]:
        """Start copying. The n-th array always has the same type.

        Returns:
            The arrays' device form, valid until the next call, and whether they are at their fixed
            addresses.
        """
        key = self._next, *[array.nbytes for array in arrays]
        layout = self._known.get(key)
        if layout is None:
            layout = self._lay_out(arrays)
            if layout[-1]:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[key] = layout
        self._next = (self._next + 1) % len(self._host)
        views, parts, source, target, in_place = layout
        for at, part in parts:
            part[...] = arrays[at]
        self._transfer.upload(source, target)
        return views, in_place

    def _lay_out(self, arrays: Sequence[Array]) -> Layout:
        """Say where arrays lie, in memory of their own if there is too little."""
        offsets = [0, *accumulate(_aligned(x.nbytes) for x in arrays)]
        total = offsets[-1]
        memory, host = self._device_memory, self._host[self._next]
        in_place = total <= len(memory)
        if not in_place:
            memory = memory.new_empty(total)
        if total > len(host):  # layouts that are kept have the memory from before
            host = self._host[self._next] = self._transfer.host_buffer(2 * total)
        flat = host.numpy()
        spans = [(at, x, first) for at, (x, first) in enumerate(zip(arrays, offsets, strict=False))]
        views = [memory[at : at + x.nbytes].view(DTYPES[x.dtype]) for _, x, at in spans]
        parts = [(n, flat[at : at + x.nbytes].view(x.dtype)) for n, x, at in spans if x.size]
        return views, parts, host[:total], memory[:total], in_place


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
