"""Stored responses, bounded by bytes: the oldest unused go first.

Several API processes share one store, which the supervisor keeps: `hotshoe_server.store_link`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that `previous_response_id` can name.

    Attributes:
        tenant: Who may see it.
        answer: Its JSON.
        messages: JSON of the conversation up to and including it, in chat's form.
    """

    tenant: str | None
    answer: bytes
    messages: bytes

    @property
    def num_bytes(self) -> int:
        """What it is counted as."""
        return len(self.answer) + len(self.messages)


class Store(Protocol):
    """Keeps responses by id, wherever that is."""

    async def put(self, response_id: str, entry: StoredResponse) -> None:
        """Keep a response, at the cost of those used longest ago."""
        ...

    async def get(self, response_id: str, tenant: str | None) -> StoredResponse | None:
        """Return a response of this tenant."""
        ...

    async def delete(self, response_id: str, tenant: str | None) -> bool:
        """Forget a response of this tenant; return whether there was one."""
        ...

    def close(self) -> None:
        """Let go of what leads to the store."""
        ...


class ResponseStore:
    """Keeps responses in this process; see `Store`.

    Args:
        max_bytes: Of all entries together; an entry above it is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def put(self, response_id: str, entry: StoredResponse) -> None:
        await self.delete(response_id, entry.tenant)
        if entry.num_bytes > self._max_bytes:
            return
        self._entries[response_id] = entry
        self.num_bytes += entry.num_bytes
        while self.num_bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= oldest.num_bytes

    async def get(self, response_id: str, tenant: str | None) -> StoredResponse | None:
        entry = self._entries.get(response_id)
        if entry is None or entry.tenant != tenant:
            return None
        self._entries.move_to_end(response_id)
        return entry

    async def delete(self, response_id: str, tenant: str | None) -> bool:
        entry = self._entries.get(response_id)
        if entry is None or entry.tenant != tenant:
            return False
        del self._entries[response_id]
        self.num_bytes -= entry.num_bytes
        return True

    def close(self) -> None:
        self._entries.clear()
        self.num_bytes = 0
