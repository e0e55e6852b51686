"""Memory for adapters, of the host and of the device: how much they take, and how much they may."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hotshoe.errors import MemoryLimitError
from hotshoe.platform import DeviceFacts

GIB = 2**30


class HostRoom:
    """Counts bytes by adapter.

    Args:
        limit: Most of all adapters together; None for any number.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._taken: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """Bytes of all adapters."""
        return sum(self._taken.values())

    def check(self, name: str, nbytes: int) -> None:
        """Refuse an adapter for which there is no room, in place of one of its name.

        Raises:
            MemoryLimitError: All would take more than they may.
        """
        others = self.taken - self._taken.get(name, 0)
        if self._limit is not None and others + nbytes > self._limit:
            count = len(self._taken.keys() - {name})
            raise MemoryLimitError(
                f"adapter {name!r} takes {nbytes / GIB:.3f} GiB of host memory beside "
                f"{others / GIB:.3f} of {count} others, and all may take {self._limit / GIB:.3f}; "
                "unload one, or raise --lora-host-memory-gib"
            )

    def book(self, name: str, nbytes: int) -> None:
        """Count an adapter that is loaded."""
        self._taken[name] = nbytes

    def drop(self, name: str) -> None:
        """Forget an adapter, if it is counted."""
        self._taken.pop(name, None)


class DeviceRoom:
    """Counts bytes of places on the device.

    Linear layers make their places while a model is built. The places stay unwritten until all are
    counted, because a host gives memory to tensors only when they are written.

    Args:
        free: Tells the bytes that are free on the device now; None where only its size is known.

    Attributes:
        unwritten_bytes: Of places that are not written yet.
    """

    def __init__(self, free: Callable[[], int] | None = None) -> None:
        self._free = free
        self._taken = self.unwritten_bytes = 0
        self._unwritten: list[Tensor] = []

    @property
    def taken(self) -> int:
        """Bytes of all places."""
        return self._taken

    def take(self, nbytes: int, facts: DeviceFacts) -> None:
        """Count memory that a layer is about to take, or gives back.

        Raises:
            MemoryLimitError: The device has less.
        """
        room = facts.memory_bytes - self._taken
        if nbytes > 0 and self._free is not None:
            room = min(room, self._free() - self.unwritten_bytes)
        if nbytes > room:
            raise MemoryLimitError(
                f"the places of adapters take {(self._taken + nbytes) / GIB:.1f} GiB or more, but "
                f"{facts.name} has {(self._taken + room) / GIB:.1f} GiB for them; lower "
                "--max-loras or --max-lora-rank, or name fewer matrices (--lora-target-modules)"
            )
        self._taken += nbytes

    def write_later(self, *places: Tensor) -> None:
        """Let places be zeroed by `write`."""
        self._unwritten += places
        self.unwritten_bytes += sum(place.nbytes for place in places)

    def write(self) -> None:
        """Zero all places that were made; the model is built."""
        for place in self._unwritten:
            place.zero_()
        self._unwritten.clear()
        self.unwritten_bytes = 0
