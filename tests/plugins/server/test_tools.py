"""What may be called, what must be, and how that is forced."""

import json
from dataclasses import replace

import pytest
from tests.plugins.structured_output.conftest import BACKENDS, Bench, make_bench

from hotshoe.grammar.vocabulary import vocabulary_of
from hotshoe.text.parsing import ParserFormat
from hotshoe.text.response import choose_format
from hotshoe.types import GrammarSpec
from hotshoe_parsers.plugin import TOOL_FORMATS
from hotshoe_server.errors import ApiError
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.tools import ToolPlan, call_grammar, plan_tools

NAMES = ("one", "two")
FORMATS = sorted(set(TOOL_FORMATS) - {"pythonic", "qwen3_xml"})
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


def strict(*names: str) -> list[dict[str, object]]:
    return [
        {"type": "function", "function": {"name": name, "strict": name in names}} for name in NAMES
    ]


def test_strict_tools_need_a_grammar(http) -> None:
    assert not plan(http).constrained
    assert plan(http, tools=strict("two")).strict == {"two"}
    assert plan(http, tools=strict("two")).constrained
    assert not plan(http, tools=strict("two"), tool_choice=allowed("auto")).constrained
    assert not plan(http, tools=strict("two"), tool_choice="none").constrained


@pytest.mark.parametrize("name", ["granite", "harmony", "llama3_json", "pythonic", "qwen3_xml"])
def test_strict_is_refused_where_calls_cannot_be_constrained(open_http, name: str) -> None:
    http = open_http(tool_call_parser=name)
    assert not plan(http).constrained
    with pytest.raises(ApiError, match=f"strict .* format {name}") as caught:
        plan(http, tools=strict("one"))
    assert caught.value.param == "tools"


CITY = {"type": "object", "properties": {"city": {"enum": ["Ulm"]}}, "required": ["city"]}
GOOD, BAD = {"city": "Ulm"}, {"city": "Oslo"}


@pytest.fixture(scope="module", params=BACKENDS)
def bench(request, tokenizer) -> Bench:
    vocabulary = vocabulary_of(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    return make_bench(request.param, vocabulary, tokenizer)


@pytest.mark.parametrize("name", FORMATS)
def test_what_grammars_of_calls_allow(bench: Bench, plugins, name: str) -> None:
    written = choose_format(plugins, "tool", name, {}).calls({"f": CITY, "g": CITY})

    def text(*calls: tuple[str, dict[str, str]]) -> str:
        tags = {tag.name: tag for tag in written.tags}
        parts = [tags[f].begin + json.dumps(arguments) + tags[f].end for f, arguments in calls]
        return written.opening + (written.separator or "").join(parts) + written.closing

    def accepts(found: ToolPlan, answer: str) -> bool:
        spec = GrammarSpec.structural_tag(call_grammar(written, found))
        return bench.accepts(bench.compile(spec), answer)

    tools = {"f": CITY, "g": CITY}
    forced = ToolPlan((), tools, forced=True)
    assert accepts(forced, text(("f", GOOD)))
    assert not accepts(forced, text(("f", BAD)))
    assert not accepts(forced, "It rains.")
    twice = text(("f", GOOD), ("g", GOOD))
    assert accepts(forced, twice) is (written.separator is not None)
    assert not accepts(replace(forced, parallel=False), twice)
    if written.trigger is None:
        return
    free = ToolPlan((), tools, strict=frozenset({"f"}))
    for answer in ("It rains.", "", text(("f", GOOD)), "So: " + text(("g", BAD)), twice):
        assert accepts(free, answer), answer
    for answer in (text(("f", BAD)), "So: " + text(("f", BAD)), f"So: {written.trigger} no"):
        assert not accepts(free, answer), answer
    one = replace(free, parallel=False)
    assert accepts(one, "So: " + text(("f", GOOD)))
    assert not accepts(one, twice)
