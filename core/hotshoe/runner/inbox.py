"""Carries a step's host arrays to the device in one copy.

Arrays of equal shapes always arrive at the same addresses, so that a recorded step can read them.
Host memory is a ring, since the copies of steps in flight may not have been read yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hotshoe.slots import TransferOp

Array = npt.NDArray[np.int32] | npt.NDArray[np.int64]

ALIGNMENT_BYTES = 16
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

    def stage(self, arrays: Sequence[Array]) -> tuple[list[Tensor], bool]:
        """Start copying.

        Returns:
            The arrays' device form, valid until the next call, and whether they are at their fixed
            addresses.
        """
        offsets = _offsets(arrays)
        total = offsets[-1]
        host, device = self._host[self._next], self._device_memory
        if total > len(host):
            host = self._host[self._next] = self._transfer.host_buffer(2 * total)
        if total > len(device):
            device = torch.empty(total, dtype=torch.uint8, device=device.device)
        self._next = (self._next + 1) % len(self._host)
        packed = host.numpy()
        for offset, array in zip(offsets, arrays, strict=False):
            packed[offset : offset + array.nbytes] = array.view(np.uint8)
        self._transfer.upload(host[:total], device[:total])
        views = [
            device[offset : offset + array.nbytes].view(DTYPES[array.dtype])
            for offset, array in zip(offsets, arrays, strict=False)
        ]
        return views, device is self._device_memory


def _offsets(arrays: Sequence[Array]) -> list[int]:
    """Return where each array begins, and the end of all."""
    offsets = [0]
    for array in arrays:
        offsets.append(offsets[-1] + -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
    return offsets
