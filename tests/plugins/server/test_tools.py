"""What may be called, what must be, and how that is forced."""

import json

import pytest

from hotshoe.text.parsing import CallGrammar, CallTag, ParserFormat
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.tools import ToolPlan, forced_calls, plan_tools

NAMES = ("one", "two")
TOOLS = [{"type": "function", "function": {"name": name}} for name in NAMES]


def plan(http, **body: object) -> ToolPlan:
    ask = {"messages": [], "tools": TOOLS, **body}
    request = ChatRequest.model_validate_json(json.dumps(ask))
    return plan_tools(http.state, request.tools, request.tool_choice, request.parallel_tool_calls)


ONE = {"type": "function", "function": {"name": "one"}}


def allowed(mode: str) -> dict[str, object]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [ONE]}}


@pytest.mark.parametrize(
    ("choice", "names", "forced"),
    [
        (None, NAMES, False),
        ("auto", NAMES, False),
        ("none", (), False),
        ("required", NAMES, True),
        (ONE, ("one",), True),
        (allowed("auto"), ("one",), False),
        (allowed("required"), ("one",), True),
    ],
)
def test_choices(http, choice: object, names: tuple[str, ...], forced: bool) -> None:
    found = plan(http, tool_choice=choice)
    assert (tuple(found.callable), found.forced) == (names, forced)
    assert len(found.offered) == (0 if choice == "none" else 2)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "three"}}}, "tool_choice"),
        ({"tools": TOOLS * 100}, "tools"),
    ],
)
def test_what_does_not_fit(http, body: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        plan(http, **body)
    assert caught.value.param == param


def test_models_whose_calls_nobody_knows(open_http) -> None:
    with pytest.raises(ApiError, match="--tool-call-parser"):
        plan(open_http(tool_call_parser="none"))
    with pytest.raises(ApiError, match="switched off"):
        plan(open_http(enable_auto_tool_choice=False))
    assert plan(open_http(enable_auto_tool_choice=False), tool_choice="required").forced
    http = open_http()
    http.state.tool_format = ParserFormat("odd", None, (), ())
    with pytest.raises(ApiError, match="cannot be forced"):
        plan(http, tool_choice="required")
    assert not plan(http).forced


@pytest.mark.parametrize(
    ("opening", "separator", "parallel", "once"),
    [
        ("", "\n", True, False),
        ("[", ", ", True, False),
        ("", None, True, True),
        ("", "", False, True),
    ],
)
def test_forced_calls(opening: str, separator: str | None, parallel: bool, once: bool) -> None:
    schema = {"type": "object"}
    written = CallGrammar((CallTag("f", "<f>", schema, "</f>"),), "<", opening, separator)
    found_format = ParserFormat("x", None, (), (), calls=lambda tools: written)
    found = forced_calls(found_format, ToolPlan((), {"f": schema}, True, parallel))
    assert found["type"] == "structural_tag"
    calls = found["format"]
    if opening:
        assert calls["elements"][0] == {"type": "const_string", "value": opening}
        calls = calls["elements"][1]
    assert calls["stop_after_first"] is once
    assert calls["at_least_one"] is True
    assert calls["tags"][0]["content"] == {"type": "json_schema", "json_schema": schema}
