"""Server-sent events: the stream's ASGI response, and events as bytes.

A token costs one write here. Nothing is buffered and no task is started per stream; that a client
has gone is noticed by the route, which cancels the stream.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotshoe_server.errors import ApiError, as_api_error

_log = logging.getLogger(__name__)
DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(value: Any, name: str | None = None) -> bytes:
    """Return one event whose data is a JSON value."""
    head = b"data: " if name is None else b"event: " + name.encode() + b"\ndata: "
    return head + _encoder.encode(value) + b"\n\n"


def json_text(text: str) -> bytes:
    """Return text as a JSON string."""
    return _encoder.encode(text)


class EventStream(Response):
    """Sends events as they come. An error on the way becomes the last event.

    Args:
        first: Already known, so that errors up to it had an HTTP status of their own.
        events: What follows; it is closed in the end, come what may.
        error_name: Name of the event that tells of an error.
        error_body: Returns its data; default: OpenAI's form.
    """

    media_type, write = "text/event-stream", staticmethod(event)

    def __init__(
        self,
        first: bytes,
        events: AsyncIterator[bytes],
        error_name: str | None = None,
        error_body: Callable[[ApiError], Any] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._first = first
        self._events = events
        self._error_name = error_name
        self._error_body = error_body or (lambda error: {"error": error.detail()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, then every event."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._events):  # type: ignore[type-var]
            await send(start)
            await send(_part(self._first))
            try:
                async for part in self._events:
                    await send(_part(part))
            except Exception as error:
                await send(_part(self._error(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _error(self, error: Exception) -> bytes:
        found = as_api_error(error)
        if found.code == "internal_error":
            _log.error("a stream failed", exc_info=error)
        return self.write(self._error_body(found), self._error_name)


def _part(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def open_stream(
    events: AsyncIterator[bytes],
    error_name: str | None = None,
    error_body: Callable[[ApiError], Any] | None = None,
    kind: type[EventStream] = EventStream,
) -> EventStream:
    """Wait for the first event; what goes wrong before it is raised here."""
    first = await anext(events)
    return kind(first, events, error_name, error_body)
