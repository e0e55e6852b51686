"""Stored responses, bounded by bytes: the oldest unused go first.

Several API processes share one store, which the supervisor keeps: `hotshoe_server.store_link`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

#: Of events that are handed out at once.
MAX_EVENTS = 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that `previous_response_id` can name.

    Attributes:
        tenant: Who may see it.
        answer: Its JSON.
        messages: JSON of the conversation up to and including it, in chat's form.
        running: It is still being made. Such ones go last of all.
        followed: The events of its stream are kept.
        num_own: The last messages, which are the response.
    """

    tenant: str | None
    answer: bytes
    messages: bytes
    running: bool = False
    followed: bool = False
    num_own: int = 1

    @property
    def num_bytes(self) -> int:
        """What it is counted as."""
        return len(self.answer) + len(self.messages)


@dataclass(frozen=True, slots=True)
class Events:
    """Events of a response's stream.

    Attributes:
        events: Up to `MAX_EVENTS`.
        total: How many there are by now.
        running: Others may follow.
    """

    events: list[bytes]
    total: int
    running: bool


class Store(Protocol):
    """Keeps responses by id, wherever that is."""

    async def put(self, response_id: str, entry: StoredResponse) -> bool:
        """Keep a response, at the cost of those used longest ago; return whether it has room."""
        ...

    async def extend(
        self,
        response_id: str,
        tenant: str | None,
        events: Sequence[bytes],
        entry: StoredResponse | None = None,
    ) -> bool:
        """Add events to a response of this tenant, and replace it where an entry is given.

        Returns:
            Whether it is still kept.
        """
        ...

    async def events(self, response_id: str, tenant: str | None, start: int) -> Events | None:
        """Return events of a response of this tenant, from a number on."""
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
        self._events: dict[str, list[bytes]] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def put(self, response_id: str, entry: StoredResponse) -> bool:
        await self.delete(response_id, entry.tenant)
        if entry.num_bytes > self._max_bytes:
            return False
        self._entries[response_id] = entry
        self.num_bytes += entry.num_bytes
        return self._make_room(response_id)

    async def extend(
        self,
        response_id: str,
        tenant: str | None,
        events: Sequence[bytes],
        entry: StoredResponse | None = None,
    ) -> bool:
        found = await self.get(response_id, tenant)
        if found is None:
            return False
        if entry is not None:
            self._entries[response_id] = entry
            self.num_bytes += entry.num_bytes - found.num_bytes
        if events:
            self._events.setdefault(response_id, []).extend(events)
            self.num_bytes += sum(map(len, events))
        return self._make_room(response_id)

    async def events(self, response_id: str, tenant: str | None, start: int) -> Events | None:
        found = await self.get(response_id, tenant)
        if found is None:
            return None
        kept = self._events.get(response_id, [])
        return Events(kept[start : start + MAX_EVENTS], len(kept), found.running)

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
        self._drop(response_id)
        return True

    async def abandon(self, response_id: str) -> None:
        """Say of a response that is still running that it failed: nobody makes it any more."""
        entry = self._entries.get(response_id)
        if entry is None or not entry.running:
            return
        error = {"code": "server_error", "message": "the process that made this response ended"}
        answer = msgspec.json.decode(entry.answer) | {"status": "failed", "error": error}
        told: list[bytes] = []
        if entry.followed:
            kind, number = "response.failed", len(self._events.get(response_id, []))
            data = {"type": kind, "sequence_number": number, "response": answer}
            told = [b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"]
        ended = replace(entry, answer=msgspec.json.encode(answer), running=False)
        await self.extend(response_id, entry.tenant, told, ended)

    def close(self) -> None:
        self._entries.clear()
        self._events.clear()
        self.num_bytes = 0

    def _make_room(self, response_id: str) -> bool:
        """Let others go, and this one last; return whether it is still there."""
        while self.num_bytes > self._max_bytes:
            ended = (name for name, e in self._entries.items() if not e.running)
            oldest = next((name for name in ended if name != response_id), None)
            self._drop(oldest or next(iter(self._entries)))
        return response_id in self._entries

    def _drop(self, response_id: str) -> None:
        self.num_bytes -= self._entries.pop(response_id).num_bytes
        self.num_bytes -= sum(map(len, self._events.pop(response_id, ())))
