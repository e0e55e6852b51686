"""Host memory that a device reads and writes by itself, in blocks, and weights that wait there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from hotshoe.errors import MemoryLimitError
from hotshoe.layers.device_memory import DeviceMemory
from hotshoe.slots import TransferOp

#: Memory is taken in blocks of this size: page-locked memory is granted in powers of two.
BLOCK_BYTES = 2**28
ALIGNMENT = 256
HostBuffer: TypeAlias = Callable[[int], Tensor]


class HostBlocks:
    """Pieces of host memory, of few large blocks.

    Args:
        buffer: Returns bytes that copies use; as `TransferOp.host_buffer`.
        expected: About as many bytes are asked for in all.
    """

    def __init__(self, buffer: HostBuffer, expected: int) -> None:
        self._buffer = buffer
        self._size = min(BLOCK_BYTES, 1 << max(expected - 1, 1).bit_length())
        self._block = torch.empty(0, dtype=torch.uint8)

    def take(self, nbytes: int) -> Tensor:
        """Return [nbytes] uint8, aligned, not initialized.

        Raises:
            RuntimeError: The host does not grant it.
        """
        padded = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if padded > len(self._block):
            self._block = self._buffer(max(self._size, padded))
        own, self._block = self._block[:padded], self._block[padded:]
        return own[:nbytes]


class RestingPlace:
    """Copies of a device's memory on the host, kept for the next time.

    Args:
        transfer: Copies between both.
        changing: The device's memory changes unasked, as where experts change places.

    Attributes:
        memory: That of the device.
    """

    def __init__(self, transfer: TransferOp, changing: bool = False) -> None:
        self._transfer, self._changing = transfer, changing
        self.memory = DeviceMemory(transfer)
        self._copies: list[Tensor] = []
        self._valid = False

    def forget(self) -> None:
        """Copy all anew next time: the device's memory has changed."""
        self._valid = False

    def give_up(self, storages: Iterable[torch.UntypedStorage]) -> None:
        """Give a device's memory back, once all of it is in host memory.

        Raises:
            MemoryLimitError: The host does not grant as much; nothing has been given back.
            RequestError: Some cannot be given back; as `DeviceMemory.hold`.
        """
        if self.memory.hold(storages) or not self._copies:
            self._valid, self._copies = False, []
            self._copies = self._room(self.memory.tensors)
        if not self._valid:
            for there, here in zip(self.memory.tensors, self._copies, strict=True):
                here.copy_(there, non_blocking=True)
            self._transfer.download([])()
        self.memory.give_up()
        self._valid = not self._changing

    def take_back(self) -> None:
        """Take memory on the device again, with all that it held for work that is launched next.

        Raises:
            RuntimeError: The device has too little; nothing was taken.
        """
        self.memory.take_back()
        for there, here in zip(self.memory.tensors, self._copies, strict=True):
            self._transfer.upload(here, there)

    def _room(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        nbytes = sum(map(len, tensors))
        blocks = HostBlocks(self._transfer.host_buffer, nbytes)
        try:
            return [blocks.take(len(there)) for there in tensors]
        except RuntimeError as error:
            raise MemoryLimitError(
                f"the host grants no {nbytes / 2**30:.1f} GiB of memory that the device reads, to "
                f"keep the weights ({error}); free some, or use sleep level 2"
            ) from error
