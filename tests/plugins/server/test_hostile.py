"""One request of many megabytes leaves the server answering everybody else, and lean."""

import asyncio
import base64
import contextlib
import io
import json
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from hotshoe.text import Tokenizer
from hotshoe_server import forms, renderer
from hotshoe_server.call import SMALL_BODY_BYTES, Call
from hotshoe_server.logprobs import CompletionLogprobsWriter

#: Of the 64 MB that a body may have there.
SIZE = 6_000_000
CHAT = b'{"messages":[{"role":"user","content":"hi"}]'


def message_of(kind: str) -> tuple[str, bytes]:
    """Return a path and a hostile body."""
    text = json.dumps("ab c d ef " * (SIZE // 10)).encode()
    many = {
        "lists": ("/v1/completions", b'{"prompt":[' + b"[]," * (SIZE // 3) + b"[]]}"),
        "keys": ("/v1/completions", b'{"prompt":"a"' + b',"k":1' * (SIZE // 6) + b"}"),
        "messages": (
            "/v1/chat/completions",
            b'{"messages":[' + b",".join([b'{"role":"user","content":"a"}'] * 65536) + b"]}",
        ),
        "properties": (
            "/v1/chat/completions",
            CHAT
            + b',"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{'
            + b",".join(b'"p%d":{}' % n for n in range(SIZE // 12))
            + b"}}}}]}",
        ),
        "text": ("/v1/completions", b'{"prompt":' + text + b"}"),
        "tokenize": ("/tokenize", b'{"prompt":' + text + b',"return_token_strs":true}'),
        "chat": (
            "/v1/chat/completions",
            b'{"messages":[{"role":"user","content":' + text + b"}]}",
        ),
    }
    return many[kind]


KINDS = ("text", "tokenize", "chat", "lists", "keys", "messages", "properties")


def resident_bytes(pid: int) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_a_hostile_request_freezes_nobody(run_server) -> None:
    server = run_server("demo", "--max-body-bytes", "64000000")
    before = resident_bytes(server.process.pid)
    longest: dict[str, float] = {}
    for kind in KINDS:
        path, body = message_of(kind)
        answers: list[httpx.Response] = []

        def send(path: str = path, body: bytes = body, answers: list = answers) -> None:
            headers = {"content-type": "application/json"}
            options = {"headers": headers, "timeout": 60, "verify": False}
            answers.append(httpx.post(server.url + path, content=body, **options))

        thread = threading.Thread(target=send)
        thread.start()
        while thread.is_alive():
            begin = time.monotonic()
            assert server.get("/live").status_code == 200
            longest[kind] = max(longest.get(kind, 0), time.monotonic() - begin)
            time.sleep(0.01)
        [answer] = answers
        assert answer.status_code == 400, (kind, answer.text)
    # Each of them took seconds once; the margin is for machines that do other things, too.
    assert max(longest.values()) < 1.0, longest
    assert resident_bytes(server.process.pid) - before < 400 * 2**20


def array() -> str:
    file = io.BytesIO()
    np.save(file, np.ones((1, 2), np.float32))
    return base64.b64encode(file.getvalue()).decode()


SAYS_HI = {"messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
#: Work that a request may make long: who does it, and a request that needs it.
SLOW = {
    "body": (Call, "_validated", "/v1/completions", {"prompt": "x" * SMALL_BODY_BYTES}),
    "template": (Tokenizer, "render_marked", "/v1/chat/completions", SAYS_HI),
    "text": (Tokenizer, "encode", "/v1/completions", {"prompt": "hi"}),
    "tokens": (Tokenizer, "decode", "/detokenize", {"tokens": [5]}),
    "schema": (
        *(forms, "bounded_grammar", "/v1/chat/completions"),
        SAYS_HI | {"response_format": SCHEMA},
    ),
    "log probabilities": (
        *(CompletionLogprobsWriter, "write", "/v1/completions"),
        {"prompt": [5], "logprobs": 1},
    ),
    "embeddings": (renderer, "read_embeds", "/v1/completions", {"prompt_embeds": array()}),
}


@pytest.mark.parametrize(("owner", "name", "path", "body"), SLOW.values(), ids=SLOW)
def test_slow_work_for_one_request_holds_nobody_up(
    http, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, path: str, body: dict
) -> None:
    begun, done, real = threading.Event(), threading.Event(), getattr(owner, name)

    def slow(*arguments, **options):
        if not begun.is_set():
            begun.set()
            assert done.wait(10), "the loop waits for it"
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, slow)

    async def main() -> None:
        long = asyncio.create_task(http.send("POST", path, json=body))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        for _ in range(3):
            other = await http.send("POST", "/v1/completions", json={"prompt": [5, 6]})
            assert other.status_code == 200
        assert not long.done()
        done.set()
        assert (await long).status_code in (200, 400)  # a body of that length may ask too much

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, identity"])
def test_a_packed_body_is_refused(http, coding: str) -> None:
    headers = {"content-encoding": coding, "content-type": "application/json"}
    answer = http("POST", "/v1/completions", content=b'{"prompt":"a"}', headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_an_identity_is_no_packing(http) -> None:
    answer = http(
        "POST", "/tokenize", json={"prompt": "a"}, headers={"content-encoding": "identity"}
    )
    assert answer.status_code == 200


def test_a_signal_is_heard_while_a_large_request_runs(run_server) -> None:
    server = run_server("demo", "--max-body-bytes", "64000000", "--shutdown-timeout-s", "1")
    body = b'{"tokens":[' + b"5," * 3_000_000 + b"5]}"
    headers = {"content-type": "application/json"}

    def send() -> None:
        with contextlib.suppress(httpx.TransportError):  # it may be cut off
            options = {"headers": headers, "timeout": 60, "verify": False}
            httpx.post(server.url + "/detokenize", content=body, **options)

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.3)
    begin = time.monotonic()
    server.process.terminate()
    while "shutting down" not in server.log.read_text():
        assert time.monotonic() - begin < 5, "nobody hears the signal"
        time.sleep(0.005)
    heard_s = time.monotonic() - begin
    assert server.process.wait(60) == 0
    thread.join()
    assert heard_s < 1.0
