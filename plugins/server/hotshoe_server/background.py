"""Responses made in the background: nobody's connection holds them, and the store tells of them.

Every API process finds in the store how far a response has come, whichever of them makes it. Who
makes it writes there; who follows it looks there every `POLL_S`. It ends early as every request
does, by its id in the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Protocol

import msgspec

from hotshoe_server.call import Call
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.response_answers import ResponseAnswer
from hotshoe_server.store import StoredResponse

_log = logging.getLogger(__name__)
POLL_S = 0.02
#: How long a response may take to end when it is to.
STOP_S = 10.0


class Making(Protocol):
    """A response on its way."""

    @property
    def answer(self) -> ResponseAnswer:
        """The answer as far as it has come."""
        ...

    def entry(self) -> StoredResponse:
        """Return what is stored of it."""
        ...


async def begin(call: Call, making: Making, parts: AsyncIterator[list[bytes]]) -> None:
    """Store a response and let it be made.

    Args:
        call: The request, whose body counts as held until the response has ended.
        making: What becomes of it.
        parts: The events of its stream; going through them makes it.

    Raises:
        ApiError: The store has no room for it, or is not to be used.
    """
    if not making.answer.store:
        raise ApiError("invalid_value", "background needs store=true", "store")
    server = call.server
    if not await server.store.put(making.answer.id, making.entry()):
        message = "background needs room for the response (--response-store-bytes)"
        raise ApiError("invalid_value", message, "background")
    held, call.num_body_bytes = call.num_body_bytes, 0
    server.num_open += 1
    task = asyncio.create_task(_make(call, making, parts))

    def ended(task: asyncio.Task[None]) -> None:
        server.num_open -= 1
        server.body_bytes -= held
        server.background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a response in the background failed", exc_info=error)

    server.background.add(task)
    task.add_done_callback(ended)


async def _make(call: Call, making: Making, parts: AsyncIterator[list[bytes]]) -> None:
    """Write down how a response comes about; leave it when it is no longer kept."""
    store, answer, followed = call.server.store, making.answer, making.entry().followed
    status = answer.status
    async with aclosing(parts):  # type: ignore[type-var]
        async for part in parts:
            entry = None if answer.status == status else making.entry()
            status = answer.status
            if not followed and entry is None:
                continue
            told = part if followed else []
            if not await store.extend(answer.id, call.tenant, told, entry):
                return


async def follow(call: Call, response_id: str, start: int) -> AsyncIterator[bytes]:
    """Yield the events of a response, from a number on, until it has ended.

    Raises:
        ApiError: It is not stored any more, or has ended before that number.
    """
    first = True
    while True:
        found = await call.server.store.events(response_id, call.tenant, start)
        if found is None:
            raise _unknown(response_id, None)
        if start > found.total and not found.running:
            message = f"the response has ended with event {found.total - 1}"
            raise ApiError("invalid_value", message, "starting_after")
        if found.events or first:
            yield b"".join(found.events)
        first = False
        start += len(found.events)
        if not found.running and start >= found.total:
            return
        if not found.events:
            await asyncio.sleep(POLL_S)


async def stop(call: Call, response_id: str) -> StoredResponse:
    """End a response if it is still being made; return what is stored of it then.

    Raises:
        ApiError: It is not stored, or does not end in time.
    """
    entry = await stored(call, response_id)
    try:
        async with asyncio.timeout(STOP_S):
            while entry.running:  # asked again, as it may be on its way to the engine
                served = call.server.find(msgspec.json.decode(entry.answer)["model"])
                await served.client.abort_everywhere([response_id])
                await asyncio.sleep(POLL_S)
                entry = await stored(call, response_id)
    except TimeoutError:
        raise ApiError("deadline_exceeded", "the response did not end in time") from None
    return entry


async def stored(call: Call, response_id: str, param: str | None = None) -> StoredResponse:
    """Return a stored response.

    Args:
        call: Who asks.
        response_id: Of a response.
        param: The field of the request that names it; none where the URL does.

    Raises:
        ApiError: It is not stored, or is another tenant's.
    """
    named = response_id.startswith("resp_")  # conversations are stored as well
    found = await call.server.store.get(response_id, call.tenant) if named else None
    if found is None:
        raise _unknown(response_id, param)
    return found


def _unknown(response_id: str, param: str | None) -> ApiError:
    return ApiError(
        "response_not_found",
        f"there is no stored response {response_id!r}; it may have made room for newer ones",
        param,
    )
