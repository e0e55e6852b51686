"""Stored responses, bounded by bytes: the oldest unused go first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


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


class ResponseStore:
    """Keeps responses by id, least recently used first to go.

    Args:
        max_bytes: Of all entries together; an entry above it is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, response_id: str, entry: StoredResponse) -> None:
        """Keep a response, at the cost of those used longest ago."""
        self.delete(response_id, entry.tenant)
        if entry.num_bytes > self._max_bytes:
            return
        self._entries[response_id] = entry
        self.num_bytes += entry.num_bytes
        while self.num_bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= oldest.num_bytes

    def get(self, response_id: str, tenant: str | None) -> StoredResponse | None:
        """Return a response of this tenant."""
        entry = self._entries.get(response_id)
        if entry is None or entry.tenant != tenant:
            return None
        self._entries.move_to_end(response_id)
        return entry

    def delete(self, response_id: str, tenant: str | None) -> bool:
        """Forget a response of this tenant; return whether there was one."""
        entry = self._entries.get(response_id)
        if entry is None or entry.tenant != tenant:
            return False
        del self._entries[response_id]
        self.num_bytes -= entry.num_bytes
        return True
