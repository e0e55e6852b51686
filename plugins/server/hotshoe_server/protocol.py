"""The HTTP connection: uvicorn's, with a bounded head that has to arrive in time, and answers that
have to be taken in time.

Bodies are bounded where they are read (`hotshoe_server.call`). What is left of one that was
answered before it had come is thrown away here, within the same bounds. An overloaded server
refuses a request by its head (`hotshoe_server.admission`): such a one reaches no application.

A request that asks for another protocol is served in this one, as RFC 9110, section 7.8, allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hotshoe_server.config import ServerConfig
from hotshoe_server.errors import ApiError
from hotshoe_server.state import TurnAway

#: How long connections get to send what is left, once no request runs; then they are cut.
FLUSH_S = 2
#: Characters of a header's line beside its name and value: a colon and the line's end.
_MARKS = 3


def let_in(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> ApiError | None:
    """Turn nobody away."""
    return None


def protocol_for(config: ServerConfig, turn_away: TurnAway = let_in) -> type[asyncio.Protocol]:
    """Return the protocol class with this server's limits."""
    limits = {
        "max_head_bytes": config.max_header_bytes,
        "max_unread_bytes": config.max_body_bytes or BoundedProtocol.max_unread_bytes,
        "head_timeout_s": config.read_timeout_s,
        "write_timeout_s": config.write_timeout_s,
        "turn_away": staticmethod(turn_away),
    }
    return type("LimitedProtocol", (BoundedProtocol,), limits)


class _UntilClosed(int):
    """A length that an answer neither exceeds nor falls short of: the connection's end is its end.

    Source: RFC 9112, sections 6.1 and 6.3.
    """

    def __lt__(self, other: int) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def __sub__(self, other: int) -> _UntilClosed:
        return self


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    Attributes:
        max_head_bytes: Longest request line and headers together; also what may come between two
            pieces of a body, or after its last one.
        max_unread_bytes: Longest rest of a body that was answered before it had come.
        head_timeout_s: How long a head may take, from the connection or from its first byte; also
            such a rest and what follows it.
        write_timeout_s: How long a client may take nothing of what waits for it. Then the
            connection is cut, which aborts the request.
        turn_away: Says how to refuse a POST by its head.
    """

    max_head_bytes = 65536
    max_unread_bytes = 2**24
    head_timeout_s = 60.0
    write_timeout_s = 60.0
    turn_away = staticmethod(let_in)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._num_idle_bytes = 0  # since the last one of a body, or the end of a head
        self._num_unread_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._problem = "invalid_http"
        self._is_turned_away = False  # the request whose parts come now
        self._is_writing = False  # more than the kernel takes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a head."""
        super().connection_made(transport)
        # So that nothing waits unnoticed; over TLS a limit of 0 would never let writing go on.
        transport.set_write_buffer_limits(high=1, low=0)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_head_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The kernel has not taken all of an answer: wait for the client, but not for ever."""
        super().pause_writing()
        self._is_writing = True
        self._await_reader()

    def resume_writing(self) -> None:
        """The kernel has taken everything."""
        self._stop_write_timer()
        self._is_writing = False
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless a head has grown too long."""
        if self.transport.is_closing():
            return
        self._num_idle_bytes += len(data)
        super().data_received(b"")  # ends the wait for a further request
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._problem)
        if self._num_idle_bytes > self.max_head_bytes:
            self._refuse("headers_too_large")

    def _parse(self, data: bytes) -> None:
        """Feed the parser; one that stops at the end of a head, to upgrade, is replaced.

        Raises:
            HttpParserError: This is no HTTP.
        """
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                method = self.parser.get_method()
                if method == b"CONNECT":  # what would follow is no HTTP
                    raise httptools.HttpParserError("this is no proxy") from None
                rest = rest[upgrade.args[0] :]
                head = self._head_without_upgrade(method)
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(head)

    def _head_without_upgrade(self, method: bytes) -> bytes:
        """Write the head that was parsed anew, but for the protocols that it asks for."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._is_turned_away = False
        self._await_head()

    def on_headers_complete(self) -> None:
        """The head is whole: go on if it is small enough."""
        self._num_idle_bytes = 0
        self._stop_head_timer()
        lines = (len(name) + len(value) + _MARKS for name, value in self.headers)
        size = len(self.url) + sum(lines)
        if size > self.max_head_bytes:
            self._problem = "headers_too_large"
            raise httptools.HttpParserError("the head is too long")
        if self.parser.should_upgrade():
            return  # it comes again, see `_parse`
        refusal = self.turn_away(self.url, self.headers) if self._is_plain_post() else None
        if refusal is None:
            super().on_headers_complete()
            if self.parser.get_http_version() == "1.0":  # it knows no chunks
                self.cycle.chunked_encoding = False
                self.cycle.expected_content_length = _UntilClosed()
            return
        self._is_turned_away = True
        self._num_unread_bytes = 0
        self._answer(refusal, (b"x-request-id", secrets.token_hex(12).encode()))
        self._close_after(self.head_timeout_s)

    def on_body(self, body: bytes) -> None:
        """Some of the body has come."""
        self._num_idle_bytes = 0
        if self._is_turned_away or self.cycle.response_complete:
            self._num_unread_bytes += len(body)
            if self._num_unread_bytes > self.max_unread_bytes:
                self.transport.close()
                raise httptools.HttpParserError("nobody reads this body")
        if not self._is_turned_away:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has come."""
        if self.parser.should_upgrade():
            return
        if self._is_turned_away:
            self._close_after(self.config.timeout_keep_alive)
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is complete: wait for what is left of the request, but not for ever."""
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._num_unread_bytes = 0
            self._close_after(self.head_timeout_s)

    def _refuse(self, code: str) -> None:
        if self.transport.is_closing():
            return
        self._answer(ApiError(code), (b"connection", b"close"))
        self.transport.close()

    def _answer(self, error: ApiError, *headers: tuple[bytes, bytes]) -> None:
        """Write an answer at once, past the application."""
        body = error.body()
        headers = (
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *((name.encode(), value.encode()) for name, value in error.headers.items()),
            *headers,
        )
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        status = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        self.transport.write(b"%b%b\r\n%b" % (status.encode(), lines, body))

    def _is_plain_post(self) -> bool:
        """Return whether nothing about this request and its connection asks for more care."""
        parser = self.parser
        return (
            parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not self._is_writing
            and (self.cycle is None or self.cycle.response_complete)
        )

    def _await_head(self) -> None:
        self._num_idle_bytes = 0
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._refuse, "read_timeout")

    def _close_after(self, seconds: float) -> None:
        """Wait that long for what may still come, then close."""
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(seconds, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _await_reader(self) -> None:
        self._stop_write_timer()
        unread_bytes = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(
            self.write_timeout_s, self._check_reader, unread_bytes
        )

    def _check_reader(self, unread_bytes: int) -> None:
        """Cut the connection unless the client has taken something meanwhile."""
        if self.transport.get_write_buffer_size() < unread_bytes:
            self._await_reader()
        else:
            self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class Connections(uvicorn.Server):
    """uvicorn's server without its signal handlers, which ends as if every client had gone.

    Args:
        settings: uvicorn's.
        takes: Set once connections are to be taken.
    """

    def __init__(self, settings: uvicorn.Config, takes: asyncio.Event) -> None:
        super().__init__(settings)
        self._takes = takes

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections, as soon as that may be, until the end."""
        await self._takes.wait()
        await super().serve(sockets)

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals alone."""
        return contextlib.nullcontext()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let connections end, and cut those that have not by then: nobody takes what is left."""
        timer = asyncio.get_running_loop().call_later(FLUSH_S, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
