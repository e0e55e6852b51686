"""What a request has gained and its reader has not taken yet, which it takes all at once.

A reader that keeps up gets every step's update. One that falls behind gets what has come since as
one: whatever is done for each update, such as writing to a connection, is then done less often,
which lets it catch up. So what waits is bounded by the request's own length.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hotshoe.text.output_processor import RequestUpdate, join_updates


@dataclass(slots=True)
class Mailbox:
    """Of one request, for one reader, in one event loop."""

    _updates: list[RequestUpdate] = field(default_factory=list)
    _error: Exception | None = None
    _waiter: asyncio.Future[None] | None = None

    def put(self, update: RequestUpdate) -> None:
        """Add what the request gained."""
        self._updates.append(update)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Say that no more will come; what came before is still read."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> RequestUpdate:
        """Wait for something and take all that there is.

        Raises:
            Exception: What `fail` was given.
        """
        while not self._updates:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        updates, self._updates = self._updates, []
        return join_updates(updates)


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the caller is what this loop runs just now."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
