"""The catalog, and what it lets out."""

import json

import pytest

from hotshoe.errors import EngineDeadError, MemoryLimitError, QueueFullError, RequestError
from hotshoe_server.errors import CATALOG, MAX_MESSAGE_CHARS, ApiError, as_api_error, clean


def test_every_kind_has_openais_body() -> None:
    for code, kind in CATALOG.items():
        error = ApiError(code, None if kind.message else "some text")
        body = json.loads(error.body())["error"]
        assert set(body) == {"message", "type", "param", "code"}
        assert body["code"] == code and body["message"]
        assert 400 <= error.status < 600
        assert (error.status >= 500) == (body["type"] == "server_error")


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (RequestError("n is bad", "n"), "invalid_value", "n is bad"),
        (QueueFullError("full", 3.4), "queue_full", "full"),
        (MemoryLimitError("1 GiB is missing"), "out_of_memory", "1 GiB is missing"),
        (EngineDeadError("/path at 0x7f"), "engine_dead", "does not answer"),
        (RuntimeError("/path"), "internal_error", "see its log"),
        (ApiError("not_found"), "not_found", "nothing at this URL"),
    ],
)
def test_what_exceptions_become(error: Exception, code: str, shown: str) -> None:
    found = as_api_error(error)
    assert found.code == code
    assert shown in str(found)
    assert "/path" not in str(found)


def test_a_full_queue_says_when_to_return() -> None:
    assert as_api_error(QueueFullError("full", 3.4)).headers == {"retry-after": "3"}
    assert as_api_error(QueueFullError("full", 0.01)).headers == {"retry-after": "1"}


def test_the_engines_names_of_fields_become_the_requests() -> None:
    assert as_api_error(RequestError("bad", "grammar")).param == "response_format"


def test_messages_are_cleaned() -> None:
    assert clean("<object at 0x7f12ab>") == "<object>"
    assert clean("a\x00b\ud800c") == "a\ufffdb\ufffdc"
    assert len(clean("x" * 10_000)) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "missing_required_parameter", "messages"),
        (b"{", "invalid_json", None),
        (b"[1]", "invalid_value", None),
        (b'{"messages": 1}', "invalid_value", "messages"),
        (b'{"messages": [{"role": "user"}]}', "missing_required_parameter", "messages[0].content"),
        (b'{"messages": [{"role": "user", "content": 1}]}', "invalid_value", "messages[0].content"),
        (b'{"messages": [{"role": "x"}]}', "invalid_value", "messages[0]"),
        (b'{"messages": [{}]}', "invalid_value", "messages[0]"),
        (
            b'{"messages": [{"role": "user", "content": "x", "y": 1}]}',
            "unknown_parameter",
            "messages[0].y",
        ),
        (b'{"messages": [], "temperature": NaN}', "invalid_value", "temperature"),
        (b'{"messages": [], "temperature": 1e999}', "invalid_value", "temperature"),
        (b'{"messages": [], "n": 1.5}', "invalid_value", "n"),
        (b'{"messages": [], "n": true}', "invalid_value", "n"),
        (b'{"messages": [], "x": "\\ud800"}', "invalid_json", None),
        (b"[" * 60_000, "invalid_json", None),
        (
            b'{"messages": [], "response_format": {"type": "json_schema", "json_schema": {}}}',
            "missing_required_parameter",
            "response_format.json_schema.name",
        ),
        (b'{"messages": [], "tool_choice": {"type": "function"}}', None, "tool_choice.function"),
        (b'{"messages": [], "stop": [1]}', None, "stop[0]"),
    ],
)
def test_mistakes_in_bodies_are_named(http, body: bytes, code: str | None, param: str) -> None:
    headers = {"content-type": "application/json"}
    response = http("POST", "/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param, error
    assert code is None or error["code"] == code
