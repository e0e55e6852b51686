"""Nulls, and places of mistakes."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from hotshoe.errors import RequestError
from hotshoe_server.endpoints import ENDPOINTS
from hotshoe_server.errors import from_validation
from hotshoe_server.route import body_type
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.validation import check_counts, find_place, validated

ASK = {"messages": [{"role": "user", "content": "x"}]}
#: Each once, in an order that every test process has.
BODIES = list(dict.fromkeys(body for e in ENDPOINTS if (body := body_type(e)) is not None))


def read(value: Any) -> ChatRequest:
    return validated(ChatRequest, json.dumps(value).encode())


def mistake(value: Any) -> tuple[str, str | None]:
    body = json.dumps(value).encode()
    with pytest.raises(ValidationError) as caught:
        validated(ChatRequest, body)
    found = from_validation(caught.value, body)
    return found.code, found.param


@pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__name__)
def test_null_is_not_given_for_every_field(model) -> None:
    for name, field in model.model_fields.items():
        nothing = json.dumps({field.alias or name: None}).encode()
        assert field.is_required() or mistakes(model, nothing) <= {"missing"}, name


def mistakes(model, body: bytes) -> set[str]:
    """Return the kinds of mistakes; a field may be missing."""
    try:
        validated(model, body)
    except ValidationError as error:
        return {found["type"] for found in error.errors()}
    return set()


def test_unknown_fields_may_be_null_too() -> None:
    calls = [
        {
            "id": str(i),
            "type": "function",
            "async_": None,
            "function": {"name": "f", "arguments": "{}"},
        }
        for i in range(3)
    ]
    said = {"role": "assistant", "content": None, "tool_calls": calls, "novel": None}
    found = read({"messages": [*ASK["messages"], said, said], "echo": None, "unheard_of": None})
    assert len(found.messages[2].tool_calls) == 3
    assert found.echo is False


def test_what_a_schema_holds_stays() -> None:
    schema = {"const": None, "default": None, "properties": {"echo": None}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    found = read({**ASK, "echo": None, "tools": [tool], "other": None})
    assert found.tools[0].function.parameters == schema


def test_nulls_hide_no_other_mistake() -> None:
    assert mistake({**ASK, "echo": None, "n": "one"}) == ("invalid_value", "n")
    assert mistake({**ASK, "echo": None, "nonsense": 1}) == ("unknown_parameter", "nonsense")
    assert mistake({"messages": None}) == ("missing_required_parameter", "messages")
    with pytest.raises(ValidationError):
        validated(ChatRequest, b'{"messages": [], "echo": null, "temperature": NaN}')


def test_many_different_nulls_end() -> None:
    tools = [{"type": "function", "function": {"name": "f", str(i): None}} for i in range(200)]
    assert mistake({**ASK, "tools": tools})[0] == "unknown_parameter"


PART = {"type": "text", "text": "x"}
CONTENT = ("messages", 0, "user", "content", "list", 0, "text")


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({**PART, "detail": 1}, "messages[0].content[0].detail"),
        ({"type": "text"}, "messages[0].content[0].text"),
        ({**PART, "text": 5}, "messages[0].content[0].text"),
    ],
)
def test_places_within_a_part(part: dict, place: str) -> None:
    assert mistake({"messages": [{"role": "user", "content": [part]}]})[1] == place


@pytest.mark.parametrize(
    ("location", "missing", "place"),
    [
        ((*CONTENT, "text"), False, (*CONTENT[:2], "content", 0, "text")),
        ((*CONTENT, "more"), True, (*CONTENT[:2], "content", 0, "more")),
        (("messages", 0, "user", "content", "list"), False, ("messages", 0, "content")),
        (("messages", 9, "user", "content"), True, ("messages", 9)),
        ((), False, ()),
        (("nowhere",), False, ()),
    ],
)
def test_readings_of_a_location(location, missing: bool, place) -> None:
    body = {"messages": [{"role": "user", "content": [PART]}]}
    assert find_place(location, body, missing) == place


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 70_000 + b"1]",
        b"[" + b"{}," * 70_000 + b"1]",
        b"{" + b'"k":1,' * 20_000 + b'"k":1}',
        b"[" + b"1," * 300_000 + b"1]",
    ],
    ids=["lists", "objects", "keys", "numbers"],
)
def test_values_of_a_body_are_counted(body: bytes) -> None:
    with pytest.raises(RequestError, match="the body has more than"):
        check_counts(body, max_model_len=512)


def test_only_values_are_counted() -> None:
    check_counts(json.dumps({"prompt": '[{,:"\\' * 400_000}).encode(), max_model_len=512)
    check_counts(b"[" + b"1," * 300_000 + b"1]", max_model_len=131_072)


@pytest.mark.parametrize("body", [b'{"a', b'"', b"", b'{"a":"b\\"', b"]", b'""""'])
def test_counting_leaves_what_is_no_json_to_validation(body: bytes) -> None:
    check_counts(body, max_model_len=512)
