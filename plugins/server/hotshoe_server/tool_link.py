"""The part of tool servers that needs the library `mcp`: one connection, with bounded answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from hotshoe_server.tool_servers import Limits


class Bounded(httpx2.AsyncByteStream):
    """The body of an answer, which ends with an error where it is too long."""

    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner, self._max_bytes = inner, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                message = f"the answer has more than {self._max_bytes} bytes (--tool-answer-bytes)"
                raise httpx2.ReadError(message)
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Bounds every answer."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(trust_env=False)
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.ReadError("the answer is packed, though none may be")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Bounded(response.stream, self._max_bytes)
        return response


@asynccontextmanager
async def connected(url: str, headers: Mapping[str, str], limits: Limits) -> AsyncIterator[Client]:
    """Connect to a server. Answers are bounded before they are unpacked, so none may be packed."""
    async with httpx2.AsyncClient(
        transport=BoundedTransport(limits.max_bytes),
        headers={**headers, "accept-encoding": "identity"},
        timeout=limits.timeout_s,
        trust_env=False,
    ) as http:
        link = streamable_http_client(url, http_client=http, max_sse_event_size=limits.max_bytes)
        async with Client(link, cache=None, read_timeout_seconds=limits.timeout_s) as client:
            yield client
