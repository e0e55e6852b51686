"""Whatever bytes a client sends, in whatever pieces, a connection answers by HTTP or ends."""

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.mutations import changed_bytes

from hotshoe_server.config import ServerConfig
from hotshoe_server.protocol import let_in
from hotshoe_server.serving import Server

SOON_S = 30.0
HEAD = b"POST /v1 HTTP/1.1\r\nhost: x\r\n"
SEEDS = [
    b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    HEAD + b"content-length: 5\r\n\r\nhello",
    HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nt: u\r\n\r\n",
    HEAD + b"upgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\nok",
    HEAD + b"expect: 100-continue\r\ncontent-length: 1\r\n\r\n1",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET /a HTTP/1.1\r\nhost: x\r\n\r\nGET /b HTTP/1.1\r\nhost: x\r\n\r\n",
]
PIECES = [b"\r\n", b"\n", b"\r", b"\0", b"0", b"-1", b"\xff", b": ", b"chunked", b"HTTP/9.9"]
ANSWER = re.compile(rb"HTTP/1\.1 (100|200|400|408|413|431)\b")


class Served:
    """A connection's server in a thread.

    Attributes:
        port: Where it listens.
        faults: What went past every handler.
        requests: How many reached the application.
    """

    def __init__(self) -> None:
        self.faults: list[object] = []
        self.requests = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(SOON_S)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda _, context: self.faults.append(context))
        config = ServerConfig(max_header_bytes=1024, max_body_bytes=4096, read_timeout_s=1.0)
        server = Server(config, None, {}, lambda: None, print)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        async with server._listen(self._answer, listener, let_in):
            self._ready.set()
            await self._end.wait()

    async def _answer(self, scope, receive, send) -> None:
        """Take the whole body, as the endpoints do."""
        self.requests += 1
        more = True
        while more:
            message = await receive()
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    def exchange(self, pieces: list[bytes]) -> bytes:
        """Send these over one connection, and that this is all; return what comes."""
        found = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SOON_S) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            with contextlib.suppress(OSError):  # the server has ended it
                for piece in pieces:
                    client.sendall(piece)
                client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while part := client.recv(2**16):
                    found += part
        return found

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@st.composite
def requests(draw: st.DrawFn) -> list[bytes]:
    """A request or several, broken here and there, in pieces."""
    data = draw(st.sampled_from(SEEDS).flatmap(changed_bytes) | st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from(PIECES)) + data[at:]
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    bounds = zip([0, *cuts], [*cuts, len(data)], strict=True)
    return [data[begin:end] for begin, end in bounds]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_seeds_are_requests(served: Served, seed: bytes) -> None:
    before = served.requests
    served.exchange([seed])
    assert served.requests > before and not served.faults


@given(pieces=requests())
def test_broken_requests(served: Served, pieces: list[bytes]) -> None:
    answer = served.exchange(pieces)
    assert not answer or ANSWER.match(answer), answer
    assert not served.faults
    assert b"200" in served.exchange([SEEDS[0]])
