"""Heads that are too long, too slow, or no HTTP, over a real connection."""

import asyncio
import contextlib
import json
import socket
import time
from functools import partial

import pytest
import uvicorn

from hotshoe_server.config import ServerConfig
from hotshoe_server.errors import ApiError
from hotshoe_server.protocol import BoundedProtocol, let_in
from hotshoe_server.serving import Server

LIMIT = 2048


async def hello(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def read_all(scope, receive, send) -> None:
    """Answer with the size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    headers = [(b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"%d" % size})


def exchange(
    *parts: bytes, pause_s: float = 0.0, app=hello, turn_away=let_in, **options: object
) -> bytes:
    """Send parts over one connection and return what comes until it is closed."""
    config = ServerConfig(max_header_bytes=LIMIT, **options)

    async def run() -> bytes:
        server = Server(config, None, {}, lambda: None, print)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        async with server._listen(app, listener, turn_away):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answer = asyncio.create_task(everything(reader))
            for part in parts:
                if not answer.done():
                    writer.write(part)
                    await asyncio.sleep(pause_s)
            found = await asyncio.wait_for(answer, 60)
            writer.close()
            return found

    return asyncio.run(run())


async def everything(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the end; it is a rude one where something sent was not read."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await reader.read(2**16):
            found += part
    return found


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def test_an_ordinary_request() -> None:
    answer = exchange(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200") and b"hello" in answer


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET / HTTP/1.1\r\nx: " + b"a" * (LIMIT + 1) + b"\r\n\r\n"],
        [b"GET /" + b"a" * (LIMIT + 1) + b" HTTP/1.1\r\n\r\n"],
        [b"GET / HTTP/1.1\r\n", *[b"x: " + b"a" * 500 + b"\r\n"] * 5],
        [b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * (LIMIT // 4) + b"\r\n"],
        [b"GET / HTTP/1.1\r\nx: ", *[b"a" * 500] * 5],
        [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\nx: ", *[b"a" * 500] * 5],
    ],
)
def test_a_head_that_is_too_long(parts: list[bytes]) -> None:
    answer = exchange(*parts, pause_s=0.01)
    last = answer[answer.rindex(b"HTTP/1.1 ") :]
    assert error_of(last) == (431, "headers_too_large")


CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        [CHUNKED, b"0\r\n", *[b"x: " + b"a" * 500 + b"\r\n"] * 8],
        [CHUNKED, b"0\r\nx: ", *[b"a" * 500] * 8],
        [CHUNKED, b"1;", *[b"a" * 500] * 8],
        [b"\r\n" * 250] * 8,
    ],
    ids=["trailers", "a trailer", "an extension of a chunk", "empty lines"],
)
def test_what_grows_beside_a_body(parts: list[bytes]) -> None:
    answer = exchange(*parts, pause_s=0.01)
    last = answer[answer.rindex(b"HTTP/1.1 ") :]
    assert error_of(last) == (431, "headers_too_large")


@pytest.mark.parametrize("extra", [b"", b"connection: keep-alive\r\n"])
def test_an_old_client_gets_no_chunks(extra: bytes) -> None:
    async def in_pieces(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"one ", b"two ", b""):
            await send({"type": "http.response.body", "body": piece, "more_body": bool(piece)})

    answer = exchange(b"GET / HTTP/1.0\r\nhost: x\r\n" + extra + b"\r\n", app=in_pieces)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b"one two "
    assert b"transfer-encoding" not in head and b"connection: close" in head


def test_a_body_in_many_small_chunks() -> None:
    parts = [CHUNKED, *[b"1\r\na\r\n" * 400] * 8, b"0\r\n\r\n"]
    answer = exchange(*parts, pause_s=0.01, app=read_all)
    assert b"3200" in answer


POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        [POST % 4000, *[b"a" * 1000] * 4, LAST],
        [POST % 4000 + b"a", b"a" * 3999 + LAST],
        [CHUNKED, *[b"3e8\r\n" + b"a" * 1000 + b"\r\n"] * 4, b"0\r\n\r\n", LAST],
    ],
)
def test_a_body_that_nobody_reads_is_thrown_away(parts: list[bytes]) -> None:
    answer = exchange(*parts, pause_s=0.02, max_body_bytes=4096)
    assert answer.count(b"HTTP/1.1 200") == 2 and answer.count(b"hello") == 2


@pytest.mark.parametrize(
    "start", [POST % 10**9, CHUNKED + b"%x\r\n" % 10**9], ids=["announced", "chunked"]
)
def test_no_more_of_it_than_of_any_body(start: bytes) -> None:
    answer = exchange(start, *[b"a" * 1000] * 20, pause_s=0.02, max_body_bytes=4096)
    assert answer.count(b"HTTP/1.1") == 1 and b"hello" in answer


def test_nor_for_longer() -> None:
    begin = time.monotonic()
    options = {"read_timeout_s": 1.0, "max_body_bytes": 4096}
    answer = exchange(POST % 4000, *[b"a"] * 40, pause_s=0.05, **options)
    assert answer.count(b"HTTP/1.1") == 1 and b"hello" in answer
    assert time.monotonic() - begin >= 1.0


def refuse(target: bytes, headers: object) -> ApiError:
    """Turn everybody away."""
    return ApiError("queue_full", "too many requests wait", retry_after_s=3)


def statuses(answer: bytes) -> list[int]:
    return [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def test_who_is_turned_away_reaches_no_application() -> None:
    answer = exchange(POST % 4 + b"body", LAST, turn_away=refuse)
    refused, _, served = answer.rpartition(b"HTTP/1.1 ")
    assert error_of(refused) == (429, "queue_full") and b"hello" in served
    head = refused.partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 429 too many requests\r\n")
    for line in (b"retry-after: 3", b"content-type: application/json", b"x-request-id: ", b"date:"):
        assert b"\r\n" + line in head


@pytest.mark.parametrize(
    "parts",
    [
        [POST % 4000, *[b"a" * 1000] * 4, LAST],
        [POST % 4000 + b"a", b"a" * 3999 + LAST],
        [CHUNKED, *[b"3e8\r\n" + b"a" * 1000 + b"\r\n"] * 4, b"0\r\n\r\n", LAST],
        [POST % 0 + LAST],
    ],
    ids=["parts", "pipelined", "chunked", "none"],
)
def test_the_body_of_who_was_turned_away_is_thrown_away(parts: list[bytes]) -> None:
    options = {"pause_s": 0.02, "max_body_bytes": 4096}
    answer = exchange(*parts, turn_away=refuse, **options)
    assert statuses(answer) == [429, 200]


def test_but_no_more_of_it_than_of_any_body_and_for_no_longer() -> None:
    options = {"turn_away": refuse, "max_body_bytes": 4096}
    endless = exchange(POST % 10**9, *[b"a" * 1000] * 20, pause_s=0.02, **options)
    begin = time.monotonic()
    slow = exchange(POST % 4000, *[b"a"] * 40, pause_s=0.05, read_timeout_s=1.0, **options)
    assert time.monotonic() - begin >= 1.0
    assert statuses(endless) == statuses(slow) == [429]


def test_many_are_turned_away_over_one_connection() -> None:
    answer = exchange((POST % 4 + b"body") * 500 + LAST, turn_away=refuse)
    assert statuses(answer) == [429] * 500 + [200]


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        b"POST / HTTP/1.0\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["GET", "closing", "1.0"],
)
def test_what_is_no_plain_post_goes_on_to_the_application(request_: bytes) -> None:
    assert b"hello" in exchange(request_, turn_away=refuse)


def test_an_answer_that_is_being_made_comes_before_the_next_refusal() -> None:
    async def late(scope, receive, send) -> None:
        await asyncio.sleep(0.05)
        await hello(scope, receive, send)

    get = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    answer = exchange(get + POST % 4 + b"body" + LAST, app=late, turn_away=refuse)
    assert statuses(answer) == [200, 200, 200]


def test_who_was_turned_away_may_not_stay_for_ever(monkeypatch) -> None:
    monkeypatch.setattr(uvicorn, "Config", partial(uvicorn.Config, timeout_keep_alive=1))
    answer = exchange(POST % 4 + b"body", turn_away=refuse, read_timeout_s=100.0)
    assert statuses(answer) == [429]  # and then the connection was closed


UPGRADE = b"host: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: A\r\n"
SMUGGLED = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "upgrade", [UPGRADE, UPGRADE.replace(b"h2c", b"websocket")], ids=["h2c", "websocket"]
)
@pytest.mark.parametrize("num_parts", [1, 2, 7])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_upgrade_is_ignored_and_the_body_is_a_body(
    upgrade: bytes, num_parts: int, chunked: bool
) -> None:
    size, body = b"content-length: %d" % len(SMUGGLED), SMUGGLED
    if chunked:
        size, body = b"transfer-encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = b"POST / HTTP/1.1\r\n" + upgrade + size + b"\r\n\r\n"
    if num_parts == 1:
        parts = [head + body]
    elif num_parts == 2:
        parts = [head, body]
    else:
        whole = head + body
        step = len(whole) // num_parts
        parts = [whole[at : at + step] for at in range(0, len(whole), step)]
    answer = exchange(*parts, pause_s=0.02, app=read_all)
    assert statuses(answer) == [200]
    # Chunked answers say how long a piece is.
    assert answer.rstrip().endswith(b"\r\n%d\r\n0" % len(SMUGGLED))


def test_requests_that_ask_for_upgrades_over_one_connection() -> None:
    get = b"GET / HTTP/1.1\r\n" + UPGRADE + b"\r\n"
    post = b"POST / HTTP/1.1\r\n" + UPGRADE + b"content-length: 4\r\n\r\nbody"
    assert statuses(exchange((get + post) * 100 + LAST)) == [200] * 201
    assert statuses(exchange(post * 3 + LAST, turn_away=refuse)) == [429] * 3 + [200]


def test_an_upgrade_leaves_the_other_headers_alone() -> None:
    seen = []

    async def note(scope, receive, send) -> None:
        seen.append((scope["method"], scope["path"], scope["headers"], scope["http_version"]))
        await hello(scope, receive, send)

    head = b"GET /a%20b?c HTTP/1.1\r\n" + UPGRADE + b"X-Y:  z z\r\nx-y:\r\n"
    exchange(head + b"connection: close\r\n\r\n", app=note)
    others = [
        (b"host", b"x"),
        (b"connection", b"Upgrade, HTTP2-Settings"),
        (b"http2-settings", b"A"),
    ]
    others += [(b"x-y", b"z z"), (b"x-y", b""), (b"connection", b"close")]
    assert seen == [("GET", "/a b", others, "1.1")]


@pytest.mark.parametrize("target", [b"/", b"host:443"])
def test_there_is_no_tunnel(target: bytes) -> None:
    head = b"CONNECT " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n"
    assert error_of(exchange(head, LAST, pause_s=0.02)) == (400, "invalid_http")


@pytest.mark.parametrize("parts", [[], [b"GET"], [b"GET / HTTP/1.1\r\nx: "], [b"\r\n"]])
def test_a_head_that_takes_too_long(parts: list[bytes]) -> None:
    assert error_of(exchange(*parts, read_timeout_s=0.5)) == (408, "read_timeout")


def test_a_head_that_trickles_in() -> None:
    slow = [b"GET / HTTP/1.1\r\n", *[b"a: b\r\n"] * 20]
    assert error_of(exchange(*slow, pause_s=0.05, read_timeout_s=0.5)) == (408, "read_timeout")


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"HELO there\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
def test_what_is_no_http(data: bytes) -> None:
    answer = exchange(data)
    assert b"Traceback" not in answer
    last = answer[answer.rindex(b"HTTP/1.1 ") :]
    assert b" 200 " in last or error_of(last) == (400, "invalid_http")


CHUNK = bytes(2**16)


class Flood:
    """Answers without end, until the client has gone."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def __call__(self, scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

        async def write() -> None:
            while True:
                await send({"type": "http.response.body", "body": CHUNK, "more_body": True})

        writing = asyncio.create_task(write())
        while (await receive())["type"] != "http.disconnect":
            pass
        writing.cancel()
        self.ended.set()


async def flooded(
    write_timeout_s: float, read_bytes: int, pause_s: float, for_s: float = 60.0
) -> tuple[bool, float]:
    """Read so much, again and again with pauses.

    Returns:
        Whether that was cut off; and the longest pause, which is the machine's affair.
    """
    app = Flood()
    config = ServerConfig(write_timeout_s=write_timeout_s)
    server = Server(config, None, {}, lambda: None, print)
    listener = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.get_running_loop()
    async with server._listen(app, listener):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(listener.getsockname())
            client.setblocking(False)
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            begin = last = loop.time()
            longest_s = 0.0
            while not app.ended.is_set() and loop.time() - begin < for_s:
                left = read_bytes
                while left > 0 and not app.ended.is_set():
                    left -= len(await loop.sock_recv(client, left))
                await asyncio.sleep(pause_s)
                longest_s, last = max(longest_s, loop.time() - last), loop.time()
            return app.ended.is_set(), longest_s


def test_a_client_that_does_not_read_is_cut_off() -> None:
    is_cut, _ = asyncio.run(flooded(0.4, read_bytes=0, pause_s=0.02))
    assert is_cut


def test_a_client_that_reads_slowly_is_served() -> None:
    is_cut, longest_s = asyncio.run(flooded(1.5, read_bytes=2**22, pause_s=0.2, for_s=3.0))
    assert not is_cut or longest_s > 1.0


def test_an_answer_that_is_complete_does_not_wait_for_ever_either(monkeypatch) -> None:
    plain = BoundedProtocol.connection_lost

    async def run() -> None:
        answered, lost = asyncio.Event(), asyncio.Event()

        def connection_lost(self, exc) -> None:
            plain(self, exc)
            lost.set()

        monkeypatch.setattr(BoundedProtocol, "connection_lost", connection_lost)

        async def answer(scope, receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(2**23)})
            answered.set()

        server = Server(ServerConfig(write_timeout_s=0.4), None, {}, lambda: None, print)
        listener = socket.create_server(("127.0.0.1", 0))
        async with server._listen(answer, listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await answered.wait()
            await asyncio.wait_for(lost.wait(), 60)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(2**23)
            writer.close()

    asyncio.run(run())
