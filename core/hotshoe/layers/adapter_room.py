"""Host memory for loaded adapters: how much they take, and how much they may."""

from __future__ import annotations

from hotshoe.errors import MemoryLimitError

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
