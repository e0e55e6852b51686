"""Memory of a device that goes while its tensors live, and comes back where it was if it can."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from hotshoe.errors import EngineError, RequestError
from hotshoe.slots import ReservedMemory, ReservingTransferOp, TransferOp


class DeviceMemory:
    """Memory that is given up and taken back, with all tensors over it as they are.

    When it is taken back for the first time it moves to addresses that stay, where the transfer
    has such: until then nobody knows whether it is ever given up.

    Args:
        transfer: Reserves addresses, or does not.

    Attributes:
        tensors: [n] uint8, one for each piece of it; see `hold`.
        gone: It has been given up.
    """

    def __init__(self, transfer: TransferOp) -> None:
        self._reserving: ReservingTransferOp | None = None
        if isinstance(transfer, ReservingTransferOp):
            self._reserving = transfer
        self._reserved: list[ReservedMemory] = []
        self._sizes: list[int] = []
        self.tensors: list[Tensor] = []
        self.gone = False

    @property
    def settled(self) -> bool:
        """Whether it has moved to addresses that stay."""
        return bool(self._reserved)

    def keeps(self, storages: Sequence[torch.UntypedStorage]) -> bool:
        """Return whether all of this comes back at its addresses, and is anything at all."""
        own = self._addresses()
        return bool(storages) and all(storage.data_ptr() in own for storage in storages)

    def _addresses(self) -> set[int]:
        return {tensor.data_ptr() for memory in self._reserved for tensor in memory.tensors}

    def hold(self, storages: Iterable[torch.UntypedStorage]) -> bool:
        """Be the memory of these storages; return whether it was that of others before.

        Raises:
            RequestError: Some cannot be given back while its tensors live; nothing has changed.
        """
        found = {storage.data_ptr(): storage for storage in storages}
        if found.keys() == {tensor.data_ptr() for tensor in self.tensors}:
            return False
        own = self._addresses()
        for address, storage in found.items():
            if not storage.resizable() and address not in own:
                raise unmovable(storage.device)
        self.tensors = [
            torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            for storage in found.values()
        ]
        self._sizes = [len(tensor) for tensor in self.tensors]
        return True

    def give_up(self) -> None:
        """Give it to others, with what it holds."""
        self.gone = True
        for tensor in self.tensors:
            storage = tensor.untyped_storage()
            if storage.resizable():
                storage.resize_(0)
        for memory in self._reserved:
            memory.give_back()

    @torch.inference_mode()  # where tensors of both modes may be moved
    def take_back(self) -> None:
        """Take it again; its content is not defined.

        Raises:
            RuntimeError: There is too little; nothing was taken.
            EngineError: It cannot be tried again.
        """
        try:
            for memory in self._reserved:
                memory.take()
            fresh = [
                (tensor, size)
                for tensor, size in zip(self.tensors, self._sizes, strict=True)
                if tensor.untyped_storage().resizable()
            ]
            if fresh and self._reserving is not None:
                self._move(*zip(*fresh, strict=True))
            else:
                for tensor, size in fresh:
                    tensor.untyped_storage().resize_(size)
        except RuntimeError:
            self.give_up()
            raise
        self.gone = False

    def _move(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> None:
        """Take memory at addresses that stay, and let all tensors over the old storages lie there.

        An old storage that outlives this has users that are no tensors of Python's, and would
        look at nothing. Then all go back to ordinary memory, for good.
        """
        assert self._reserving is not None
        every = tensors_over([tensor.untyped_storage() for tensor in tensors])
        reserved = self._reserving.reserve(sizes)
        old = [weakref.ref(tensor.untyped_storage()) for tensor in tensors]
        for over, place in zip(every, reserved.tensors, strict=True):
            _lay(over, place.untyped_storage())
        if all(storage() is None for storage in old):
            self._reserved.append(reserved)
            return
        self._reserving = None
        reserved.give_back()
        try:
            for over, left, size in zip(every, old, sizes, strict=True):
                found = left()
                storage = over[0].new_empty(0).untyped_storage() if found is None else found
                storage.resize_(size)
                _lay(over, storage)
        except RuntimeError as error:
            raise EngineError("there was memory for the weights, and is none now") from error


def tensors_over(storages: Sequence[torch.UntypedStorage]) -> list[list[Tensor]]:
    """Return, for each storage, all tensors over it that Python knows of."""
    found: dict[int, list[Tensor]] = {id(storage): [] for storage in storages}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):
            with suppress(RuntimeError):  # it has no storage
                found.get(id(thing.untyped_storage()), []).append(thing)
    return list(found.values())


def _lay(tensors: Sequence[Tensor], storage: torch.UntypedStorage) -> None:
    """Let tensors look at another storage of the same size, each as it did before."""
    for tensor in tensors:
        tensor.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def unmovable(device: torch.device) -> RequestError:
    """Return the refusal of sleep level 1 for memory that cannot be given back."""
    return RequestError(
        f"memory of device {device.type} cannot be given back while its tensors live; "
        "use level 2, which reads the checkpoint again",
        "level",
    )
