"""Endpoints as ASGI applications: clients that go, bodies that are too long or too slow."""

import asyncio
import json
from typing import Any

import pytest

from hotshoe.errors import EngineDeadError, QueueFullError
from hotshoe_server.endpoints import ENDPOINTS

BODY = json.dumps({"prompt": "Say", "max_tokens": 400}).encode()


def scope_for(path: str = "/v1/completions", **headers: str) -> dict[str, Any]:
    given = {"host": "127.0.0.1", "content-type": "application/json", **headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        + [(k.encode(), v.encode()) for k, v in given.items() if k not in headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }


class Connection:
    """What an ASGI server would hand over: body parts, then a client that stays or goes."""

    def __init__(self, *parts: bytes, end: bool = True) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.first_part = asyncio.Event()
        self._parts = list(parts)
        self._end = end

    async def receive(self) -> dict[str, Any]:
        if self._parts:
            part = self._parts.pop(0)
            more = bool(self._parts) or not self._end
            return {"type": "http.request", "body": part, "more_body": more}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.first_part.set()

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def error(self) -> str:
        return json.loads(b"".join(m.get("body", b"") for m in self.sent))["error"]["code"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_ends_its_request(http, engine, gate, stream: bool) -> None:
    engine.reply = "one two three four " * 50
    body = json.dumps({"prompt": "Say", "max_tokens": 400, "stream": stream}).encode()

    async def run() -> None:
        connection = Connection(body)
        call = http.app(scope_for(), connection.receive, connection.send)
        task = asyncio.create_task(call)
        if stream:
            gate.allow(3)
            await connection.first_part.wait()
        else:
            while not engine.requests:
                await asyncio.sleep(0)
        assert engine.aborted == []
        connection.gone.set()
        await asyncio.wait_for(task, 60)
        if not stream:
            assert connection.sent == []

    asyncio.run(run())
    assert engine.aborted == [engine.requests[0].id]
    assert http.state.in_flight == {}
    assert http.state.num_open == 0


def test_a_cancelled_server_task_stays_cancelled(http, engine, gate) -> None:
    async def run() -> None:
        connection = Connection(BODY)
        task = asyncio.create_task(http.app(scope_for(), connection.receive, connection.send))
        while not engine.requests:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert engine.aborted == [engine.requests[0].id]


def answer(http, connection: Connection, **headers: str) -> Connection:
    asyncio.run(http.app(scope_for(**headers), connection.receive, connection.send))
    return connection


def test_a_body_that_is_announced_too_long_is_not_read(open_http) -> None:
    connection = Connection(BODY)
    answer(open_http(max_body_bytes=2048), connection, content_length="999999999999")
    assert (connection.status, connection.error) == (413, "body_too_large")
    assert connection._parts == [BODY]
    assert (b"connection", b"close") in connection.sent[0]["headers"]


def test_a_body_without_an_end_is_read_up_to_the_limit(open_http) -> None:
    connection = Connection(*[b" " * 1024] * 100, end=False)
    answer(open_http(max_body_bytes=4096), connection)
    assert (connection.status, connection.error) == (413, "body_too_large")
    assert len(connection._parts) > 90


def test_bodies_of_all_requests_together_are_bounded(open_http, monkeypatch) -> None:
    monkeypatch.setattr("hotshoe_server.call.MAX_HELD_BYTES", len(BODY) + 10)
    http = open_http()
    assert http.post("/v1/completions", prompt="x").status_code == 200
    assert http.state.body_bytes == 0  # who has been answered counts no more
    http.state.body_bytes = 11
    connection = answer(http, Connection(BODY))
    assert (connection.status, connection.error) == (429, "queue_full")
    assert http.state.body_bytes == 11


def test_the_longest_body_follows_from_the_longest_sequence(open_http, engine) -> None:
    limit = open_http().state.max_body_bytes
    assert limit == 4 * 2**20 + 64 * engine.info.max_model_len
    connection = answer(open_http(), Connection(BODY), content_length=str(limit + 1))
    assert (connection.status, connection.error) == (413, "body_too_large")


def test_a_body_that_takes_too_long(open_http) -> None:
    connection = Connection(BODY, end=False)
    answer(open_http(read_timeout_s=0.1), connection)
    assert (connection.status, connection.error) == (408, "read_timeout")


def test_a_client_that_goes_while_it_sends(http, engine, caplog) -> None:
    connection = Connection(BODY, end=False)
    connection_gone = connection.gone

    async def run() -> None:
        connection_gone.set()
        await http.app(scope_for(), connection.receive, connection.send)

    asyncio.run(run())
    assert engine.requests == [] and caplog.text == ""


def fill(http, engine) -> None:
    engine.error = QueueFullError("too many requests wait", 3.0)


def kill(http, engine) -> None:
    engine.error = EngineDeadError("the engine has died")


def drain(http, engine) -> None:
    http.state.draining = True


CLOSED = [(fill, 429, "queue_full"), (kill, 503, "engine_dead"), (drain, 503, "shutting_down")]


@pytest.mark.parametrize(("close", "status", "code"), CLOSED)
@pytest.mark.parametrize("path", [e.path for e in ENDPOINTS if e.generates])
def test_who_cannot_be_served_is_told_before_the_body_is_read(
    http, engine, caplog, path: str, close, status: int, code: str
) -> None:
    close(http, engine)
    connection = Connection(BODY)
    asyncio.run(http.app(scope_for(path), connection.receive, connection.send))
    assert connection.status == status
    if not path.startswith("/v1/messages"):  # whose errors have another form
        assert connection.error == code
    assert b"retry-after" in dict(connection.sent[0]["headers"])
    assert connection._parts == [BODY]
    assert caplog.text == ""  # however many there are


@pytest.mark.parametrize(("close", "status", "code"), CLOSED)
def test_room_that_goes_while_the_body_comes(http, engine, close, status: int, code: str) -> None:
    connection = Connection(BODY[:10], BODY[10:])

    async def receive() -> dict[str, Any]:
        message = await connection.receive()
        if not message.get("more_body"):
            close(http, engine)
        return message

    asyncio.run(http.app(scope_for(), receive, connection.send))
    assert (connection.status, connection.error) == (status, code)
    assert engine.requests == []


HALVES = ("render", "derender")


def test_what_generates_and_nothing_else_asks_for_room(http, engine) -> None:
    fill(http, engine)
    assert {e.path for e in ENDPOINTS if e.generates} == {
        *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/inference/v1/generate"),
        *("/classify", "/v1/classify", "/pooling"),
        *("/v1/embeddings", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
        *(f"/v1/{kind}/{half}" for kind in ("chat/completions", "completions") for half in HALVES),
        *("/invocations", "/tokenize", "/detokenize"),
        *("/v1/messages", "/v1/messages/count_tokens", "/v1/responses/input_tokens"),
    }
    assert http.post("/tokenize", prompt="x").status_code == 429
    assert http.get("/v1/models").status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_media_types(http, kind: str) -> None:
    connection = answer(http, Connection(BODY), content_type=kind)
    assert (connection.status, connection.error) == (415, "unsupported_media_type")


def test_no_body_is_an_empty_object(http) -> None:
    response = http("POST", "/v1/completions")
    assert response.json()["error"]["message"] == "give prompt or prompt_embeds"


def test_unforeseen_failures_tell_nothing(http, engine, caplog) -> None:
    engine.error = RuntimeError("/secret/path at 0x7f0123")
    response = http.post("/v1/completions", prompt="x")
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the server failed on this request; see its log"
    assert "/secret/path" in caplog.text


def test_every_answer_names_its_request(http) -> None:
    response = http.post("/v1/completions", prompt="x")
    assert response.headers["x-request-id"] in response.json()["id"]
    assert http.post("/v1/completions").headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "body", "prefix"),
    [
        ("/v1/completions", {"prompt": "x"}, "cmpl-"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "chatcmpl-"),
        ("/inference/v1/generate", {"token_ids": [5]}, "gen-"),
    ],
)
def test_a_clients_id_is_the_requests(http, engine, path: str, body: dict, prefix: str) -> None:
    response = http("POST", path, json=body, headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    answer = response.json()
    assert (answer.get("id") or answer["request_id"]) == f"{prefix}mine-1"
    assert engine.requests[-1].id == f"{prefix}mine-1"
    for unusable in ("", "two words", "x" * 129, "caf\u00e9".encode()):
        response = http("POST", path, json=body, headers={"x-request-id": unusable})
        assert response.headers["x-request-id"] not in ("", unusable)


def test_an_id_that_is_in_use(http, engine, gate) -> None:
    async def twice():
        ask = {"json": {"prompt": "x"}, "headers": {"x-request-id": "same"}}
        tasks = [asyncio.create_task(http.send("POST", "/v1/completions", **ask)) for _ in "ab"]
        while len(engine.requests) < 2:
            await asyncio.sleep(0.001)
        gate.allow(100)
        return await asyncio.gather(*tasks)

    assert [answer.status_code for answer in asyncio.run(twice())] == [200, 200]
    first, second = (request.id for request in engine.requests)
    assert first == "cmpl-same" and second.startswith("cmpl-same-")


def test_clients_do_not_choose_where_responses_are_stored(http) -> None:
    ask = {"json": {"input": "x"}, "headers": {"x-request-id": "same"}}
    ids = {http("POST", "/v1/responses", **ask).json()["id"] for _ in range(2)}
    assert len(ids) == 2 and not any("same" in found for found in ids)
