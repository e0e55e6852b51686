"""Servers of tools that the operator lists, spoken to in the Model Context Protocol.

Nothing else is ever fetched. A task of its own holds the connection to a server as long as one
response needs it, so that the server may keep a session. The library `mcp` speaks the protocol; it
is an optional extra, and imported with the first response that needs it. Every answer is bounded
in time and in bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotshoe.foreign import ForeignError, cause_of, foreign
from hotshoe_server.errors import ApiError

_log = logging.getLogger(__name__)
#: Of one server; its list may come in pages.
MAX_PAGES = 32
MAX_NOTE_CHARS = 200


class ToolServerError(Exception):
    """A server did not answer, or not as it should. The text is for the client."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one answer of a server may take.

    Attributes:
        timeout_s: From a question to the end of its answer.
        max_bytes: Of an answer.
    """

    timeout_s: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """A tool of a server."""

    name: str
    description: str | None
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: text, which tells of an error if the tool failed."""

    text: str
    failed: bool = False


def find_server(servers: Mapping[str, str], label: str, url: str | None, place: str) -> str:
    """Return the address of the listed server that a request names.

    Args:
        servers: Addresses by label, as the operator lists them.
        label, url: As the request has them; a URL wins.
        place: Of the tool in the request.

    Raises:
        ApiError: It is not listed.
    """
    if url is not None:
        if url.rstrip("/") in (known.rstrip("/") for known in servers.values()):
            return url
        message = f"{url} is none of the tool servers that this server may ask (--tool-server)"
        raise ApiError("invalid_value", message, f"{place}.server_url")
    if label in servers:
        return servers[label]
    known = ", ".join(servers) or "there are none (--tool-server)"
    message = f"there is no tool server {label!r} here, only {known}"
    raise ApiError("invalid_value", message, f"{place}.server_label")


class ToolSession:
    """The connection of one response to one server. Close it, come what may.

    Args:
        url: A listed one.
        authorization: A token that the server is shown.
        limits: Of every answer.
    """

    def __init__(self, url: str, authorization: str | None, limits: Limits) -> None:
        self._url = url
        self._headers = (
            {} if authorization is None else {"authorization": f"Bearer {authorization}"}
        )
        self._limits = limits
        self._jobs: asyncio.Queue[tuple[str, dict[str, Any], asyncio.Future[Any]] | None]
        self._jobs = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> list[ToolInfo]:
        """Connect, and return the server's tools.

        Raises:
            ToolServerError: It does not answer, or not as it should.
        """
        listed: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(listed))
        found = await self._answer(listed)
        return [ToolInfo(tool.name, tool.description, tool.input_schema) for tool in found]

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool; a connection that an error has ended is made anew.

        Raises:
            ToolServerError: The server does not answer, or not as it should.
        """
        if self._task is None or self._task.done():
            await self.open()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((name, arguments, answer))
        return _result(await self._answer(answer))

    async def close(self) -> None:
        """End the connection; a server that does not take part is left."""
        if self._task is None:
            return
        self._jobs.put_nowait(None)
        await asyncio.wait([self._task], timeout=1.0)
        self._task.cancel()
        await asyncio.wait([self._task], timeout=1.0)

    async def _answer(self, answer: asyncio.Future[Any]) -> Any:
        """Wait for an answer, or for the end of the connection.

        Raises:
            ToolServerError: None came.
        """
        assert self._task is not None
        await asyncio.wait(
            [answer, self._task],
            timeout=self._limits.timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if answer.done():
            with contextlib.suppress(asyncio.CancelledError):
                if (error := answer.exception()) is None:
                    return answer.result()
                raise _failure(self._url, error)
        answer.cancel()
        if not self._task.done():
            raise ToolServerError(f"it did not answer within {self._limits.timeout_s:g} s")
        error = None if self._task.cancelled() else self._task.exception()
        raise _failure(self._url, error or ConnectionError("the connection has ended"))

    async def _run(self, listed: asyncio.Future[list[Any]]) -> None:
        """Hold the connection and answer questions."""
        from hotshoe_server.tool_link import connected

        link = connected(self._url, self._headers, self._limits)
        async with link as client, asyncio.TaskGroup() as calls:
            tools, cursor = [], None
            for _ in range(MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                if (cursor := page.next_cursor) is None:
                    break
            if not listed.done():
                listed.set_result(tools)
            while (job := await self._jobs.get()) is not None:
                calls.create_task(_ask(client, *job))


async def _ask(
    client: Any, name: str, arguments: dict[str, Any], answer: asyncio.Future[Any]
) -> None:
    """Call a tool; a failure is this call's alone."""
    try:
        found = await client.call_tool(name, arguments)
    except Exception as error:
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(found)


def _failure(url: str, error: BaseException) -> ToolServerError:
    """Say what went wrong, in a line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = cause_of(error)
    _log.warning("tool server %s: %s", url, text)
    return ToolServerError(text if len(text) <= MAX_NOTE_CHARS else f"{text[:MAX_NOTE_CHARS]}...")


def _result(answer: Any) -> ToolResult:
    """Return the text of a call's answer."""
    try:
        with foreign():
            parts = [_part(content) for content in answer.content]
            if not parts and answer.structured_content is not None:
                parts = [json.dumps(answer.structured_content)]
            return ToolResult("\n".join(parts), bool(answer.is_error))
    except ForeignError as error:
        raise ToolServerError(f"its answer cannot be read: {error}") from None


def _part(content: Any) -> str:
    return content.text if content.type == "text" else f"[{content.type} left out]"


def parse_arguments(text: str) -> dict[str, Any] | None:
    """Return the arguments of a call that the model wrote; None where they are no JSON object."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
