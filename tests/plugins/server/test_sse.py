"""Server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from hotshoe_server.errors import ApiError
from hotshoe_server.sse import event, json_text, open_stream


async def body_of(events: AsyncIterator[bytes]) -> bytes:
    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    await (await open_stream(events))({}, None, send)
    assert sent[0]["status"] == 200
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    return b"".join(message.get("body", b"") for message in sent)


async def events(*parts: bytes | Exception) -> AsyncIterator[bytes]:
    for part in parts:
        if isinstance(part, Exception):
            raise part
        yield part


def test_events_are_sent_as_they_are() -> None:
    assert asyncio.run(body_of(events(b"a", b"b"))) == b"ab"


def test_an_error_before_the_first_event_is_raised() -> None:
    with pytest.raises(ApiError):
        asyncio.run(body_of(events(ApiError("not_found"))))


def test_a_later_error_is_the_last_event(caplog) -> None:
    body = asyncio.run(body_of(events(b"a", RuntimeError("/secret"))))
    found = json.loads(body.removeprefix(b"adata: "))
    assert found["error"]["code"] == "internal_error"
    assert b"secret" not in body and "/secret" in caplog.text


def test_events_are_one_line_of_json() -> None:
    assert event({"a": "b\nc"}) == b'data: {"a":"b\\nc"}\n\n'
    assert event({}, "done") == b"event: done\ndata: {}\n\n"
    text = 'line\n"quoted" \\ \u2028 😀'
    assert json.loads(json_text(text)) == text
    assert b"\n" not in json_text(text)
