"""What may be called, what must be, and how that is forced."""

import json
import random
from dataclasses import replace
from functools import partial
from typing import Any

import jsonschema
import pytest
import tokenizers
from tests.plugins.server.conftest import MODEL
from tests.plugins.structured_output.conftest import BACKENDS, Bench, make_bench

from hotshoe.errors import RequestError
from hotshoe.grammar import Matcher
from hotshoe.grammar.vocabulary import vocabulary_of
from hotshoe.text.parsing import CallGrammar, ParseContext, ParserFormat
from hotshoe.text.response import choose_format, collect
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import GrammarSpec
from hotshoe_parsers.kimi_k3 import TAGS as KIMI_K3
from hotshoe_parsers.plugin import TOOL_FORMATS
from hotshoe_parsers.xml_calls import TABLE
from hotshoe_server.conversation import ToolPlan
from hotshoe_server.errors import ApiError
from hotshoe_server.forms import call_grammar
from hotshoe_server.schemas.chat import ChatRequest
from hotshoe_server.tools import plan_tools
from hotshoe_structured_output.xgrammar_backend import XGrammar

NAMES = ("one", "two")
FORMATS = sorted(TOOL_FORMATS)
TOOLS = [{"type": "function", "function": {"name": name}} for name in NAMES]


def plan(http, **body: object) -> ToolPlan:
    ask = {"messages": [], "tools": TOOLS, **body}
    request = ChatRequest.model_validate_json(json.dumps(ask))
    return plan_tools(
        http.state.default, request.tools, request.tool_choice, request.parallel_tool_calls
    )


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
    http.state.default.tool_format = ParserFormat("odd", None, (), ())
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


def test_strict_is_refused_where_calls_cannot_be_constrained(open_http) -> None:
    http = open_http()
    http.state.default.tool_format = ParserFormat("odd", None, (), ())
    assert not plan(http).constrained
    with pytest.raises(ApiError, match=r"strict .* format odd") as caught:
        plan(http, tools=strict("one"))
    assert caught.value.param == "tools"


CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Ulm"]}},
    "required": ["city"],
    "additionalProperties": False,
}
GOOD, BAD = {"city": "Ulm"}, {"city": "Oslo"}
TWO = {"f": CITY, "g": CITY}
FORCED = ToolPlan((), TWO, forced=True)
FREE = ToolPlan((), TWO, strict=frozenset({"f"}))
#: Written before calls and answers, where a format has messages.
THOUGHT = {"harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"}


@pytest.fixture(scope="module")
def marked(plugins) -> Tokenizer:
    """The demo model's tokenizer, in which the marks of all formats are special tokens.

    But for those that stand within arguments, which are free text where a tool is not strict.
    """
    backend = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    found = [choose_format(plugins, "tool", name, {}) for name in FORMATS]
    marks = {mark for one in found for mark in one.markers}
    within = ((tags.key, *tags.key_end, *tags.kinds, tags.value_end) for tags in (*TABLE, KIMI_K3))
    marks -= {mark for marks_of_one in within for mark in marks_of_one}
    backend.add_special_tokens(sorted(marks))
    return Tokenizer(backend, {"eos_token": "<|im_end|>"}, {})


def bench_of(name: str, own: Tokenizer) -> Bench:
    return make_bench(name, vocabulary_of(own, own.vocab_size, own.eos_token_ids), own)


@pytest.fixture(scope="module")
def marked_bench(marked: Tokenizer) -> Bench:
    """The first backend, where marks are special tokens."""
    return bench_of("llguidance", marked)


@pytest.fixture(scope="module", params=[*BACKENDS, "marked"])
def bench(request, tokenizer) -> Bench:
    """Each backend where marks are text, and the first where they are special tokens."""
    if request.param == "marked":
        return request.getfixturevalue("marked_bench")
    return bench_of(request.param, tokenizer)


def written_calls(
    written: CallGrammar, *calls: tuple[str, dict[str, str]], opening: int = 0
) -> str:
    tags = {tag.name: tag for tag in reversed(written.tags)}
    parts = [
        tags[f].begin + written_arguments(tags[f].content, arguments) + tags[f].end
        for f, arguments in calls
    ]
    return written.openings[opening] + (written.separator or "").join(parts) + written.closing


def written_arguments(content: Any, arguments: dict[str, str]) -> str:
    """Return the arguments as JSON, or as the parts of the content have them."""
    if not isinstance(content, list):
        return json.dumps(arguments)
    (value,) = arguments.values()
    texts = []
    for part in content:
        match part:
            case {"text": text}:
                texts.append(text.replace("Ulm", value))
            case {"either": [first, *_]}:
                texts.append(written_arguments(first, arguments))
            case {"schema": schema}:
                texts.append(json.dumps(arguments if schema == CITY else value))
            case {"regex": _}:  # the number of a call
                texts.append("0")
            case _:
                raise AssertionError(part)
    return "".join(texts)


LEADING = "with leading, marks or preface is not supported"
#: What xgrammar refuses, and why.
REFUSED = dict.fromkeys(("harmony", "kimi_k3", "llama3_json", "pythonic", "xlam"), LEADING)
REFUSED["gigachat3"] = "a trigger that another one ends with"
REFUSED["solar_open"] = "any number of sections behind an opening, without a closing"
REFUSED["olmo3"] = "a repeated group in a regular expression"


def refused(bench: Bench, name: str, tag: dict[str, Any]) -> bool:
    """Whether the backend refuses a format by name: only xgrammar does, and only these."""
    reason = bench.backend.refusal(GrammarSpec.structural_tag(tag))
    if isinstance(bench.backend, XGrammar) and name in REFUSED:
        assert REFUSED[name] in reason
        return True
    assert reason is None
    return False


@pytest.mark.parametrize("name", FORMATS)
def test_what_grammars_of_calls_allow(bench: Bench, plugins, name: str) -> None:
    written = choose_format(plugins, "tool", name, {}).calls(TWO)
    text = partial(written_calls, written)

    def accepts(found: ToolPlan, answer: str) -> bool:
        calls = choose_format(plugins, "tool", name, {}).calls(found.kept)
        spec = GrammarSpec.structural_tag(call_grammar(calls, found))
        return bench.accepts(bench.compile(spec), answer)

    free = choose_format(plugins, "tool", name, {}).calls(FREE.kept)
    if refused(bench, name, call_grammar(free, FREE)):
        return
    assert accepts(FORCED, text(("f", GOOD)))
    assert not accepts(FORCED, text(("f", BAD)))
    assert not accepts(FORCED, "It rains.")
    twice = text(("f", GOOD), ("g", GOOD))
    assert accepts(FORCED, twice) is (written.separator is not None)
    assert not accepts(replace(FORCED, parallel=False), twice)
    so = "So: " + THOUGHT.get(name, "")
    said = text(("g", BAD), opening=-1)
    for answer in ("It rains.", "", text(("f", GOOD)), (so + said) if said else so):
        assert accepts(FREE, answer), answer
    assert accepts(FREE, twice) is (written.separator is not None)
    bad = text(("f", BAD), opening=-1)
    for answer in (text(("f", BAD)), so + bad, f"{so}{written.triggers[0]} no"):
        assert not accepts(FREE, answer), answer
    one = replace(FREE, parallel=False)
    assert accepts(one, so + text(("f", GOOD), opening=-1))
    assert not accepts(one, twice)


@pytest.mark.parametrize("name", FORMATS)
def test_a_form_of_the_text_leaves_room_for_calls(bench: Bench, plugins, name: str) -> None:
    written = choose_format(plugins, "tool", name, {}).calls(FREE.kept)
    thought = THOUGHT.get(name, "")
    spec = GrammarSpec.structural_tag(call_grammar(written, FREE, {"type": "integer"}))
    if refused(bench, name, call_grammar(written, FREE)):
        return
    grammar = bench.compile(spec)
    call = thought + written_calls(written, ("f", GOOD), opening=-1)
    for text in (f"{thought}{written.answer}42", call):
        assert bench.accepts(grammar, text), text
    bad = thought + written_calls(written, ("f", BAD), opening=-1)
    for text in ("", "It rains.", f"{thought}{written.answer}x", bad, f"{call} and", "4 2"):
        assert not bench.accepts(grammar, text), text


#: What texts are made of beside random tokens, to come near calls.
PIECES = (
    *('{"name": "f"', " to=", "functions.f", "commentary", "assistant", " ", "\n", "{"),
    *(json.dumps(GOOD), json.dumps(BAD), json.dumps(GOOD), "}", '", "parameters": '),
    f'\n{{"parameters": {json.dumps(BAD)}, "name": "f"}}',
    f" to=functions.f<|channel|>commentary<|message|>{json.dumps(BAD)}",
    f"<|start|>assistant to=functions.f<|channel|>final<|message|>{json.dumps(BAD)}",
    *('[f(city="Oslo")]', " [ f (", 'f(city="Ulm")', "]", "<function=f>", "</function>"),
    *("<parameter=city>", "Oslo", "Ulm", "</parameter>"),
)


@pytest.mark.parametrize("name", FORMATS)
def test_no_free_text_hides_a_call(marked_bench: Bench, plugins, name: str) -> None:
    """Whatever a grammar lets through, the parser finds no call of a strict tool that is not."""
    found, bench = choose_format(plugins, "tool", name, {}), marked_bench
    written = found.calls(TWO)
    tag = call_grammar(written, replace(FREE, strict=frozenset(TWO)))
    grammar = bench.compile(GrammarSpec.structural_tag(tag))
    pieces = [bench.encode(piece) for piece in (*PIECES, *found.markers)]
    pieces += [bench.encode(written.openings[-1] + one.begin) for one in written.tags]
    num_calls = 0
    for seed in range(30):
        text = wander(bench, grammar.matcher(), random.Random(seed), pieces)
        parser = found.open(ParseContext(TWO))
        for call in collect([*parser.feed(text), *parser.finish()]).calls:
            num_calls += 1
            jsonschema.validate(json.loads(call.arguments), CITY)
    assert num_calls > 2


TEXT, NULL = {"type": "string"}, {"type": "null"}
LEAVES: list[Any] = [
    TEXT, True, {"type": "boolean"}, NULL, {"type": "number"}, {"const": 3},
    {"type": "integer", "minimum": -3, "maximum": 40}, {"type": ["string", "integer"]},
    {"type": "string", "enum": ["", "a\nb\n", "\n", 'q"\\', "é", "null"]},
    {"enum": [1, True, None]},
    {"anyOf": [{"enum": ["x", "y"]}, NULL]}, {"anyOf": [TEXT, NULL]}, {"$ref": "#/$defs/unit"},
    {"anyOf": [{"type": "boolean"}, NULL]}, {"type": "array", "items": TEXT, "maxItems": 2},
    {"type": "array", "items": {"const": "</parameter>"}, "maxItems": 1, "title": "closed"},
    {"type": "object", "properties": {"n": {"$ref": "#/$defs/unit"}}, "required": ["n"],
     "additionalProperties": False},
    {"anyOf": [{"$ref": "#/$defs/tree"}, NULL]}, {"type": "string", "pattern": "^[a-c]{1,3}$"},
]  # fmt: skip
TREE = {
    "type": "object",
    "properties": {"v": {"type": "boolean"}, "sub": {"anyOf": [{"$ref": "#/$defs/tree"}, NULL]}},
    "required": ["v", "sub"],
    "additionalProperties": False,
}
DEFINITIONS = {"unit": {"type": "string", "enum": ["c", "f"]}, "tree": TREE}
#: What ends values, and calls.
ENDS = (
    *('"', '"}', "}", "]", "null", "\n</parameter>\n", "</function>", ")", "</tool_call>"),
    *("</parameter>\n", "</arg_value>\n", "</invoke>\n", "</minimax:tool_call>"),
)


def random_tool(rng: random.Random) -> dict[str, Any]:
    names = [f"a{i}" for i in range(rng.randint(0, 4))]
    return {
        "type": "object",
        "properties": {name: rng.choice(LEAVES) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": False,
        "$defs": DEFINITIONS,
    }


@pytest.mark.parametrize("name", ["pythonic", "qwen3_xml", "glm45", "minimax_m2"])
def test_forced_calls_follow_their_schema(bench: Bench, plugins, name: str) -> None:
    """Random text within the masks is nothing but valid calls, where no arguments are JSON."""
    found = choose_format(plugins, "tool", name, {})
    ends = [bench.encode(end) for end in ENDS]
    num_calls = num_refused = 0
    for seed in range(25):
        rng = random.Random(f"{name} {seed}")
        asked = ToolPlan((), {"f": random_tool(rng), "g": random_tool(rng)}, forced=True)
        try:
            tag = call_grammar(found.calls(asked.kept), asked)
        except RequestError as error:
            num_refused += "'pattern' cannot be kept in text" in str(error)
            continue
        spec = GrammarSpec.structural_tag(tag)
        if bench.backend.refusal(spec) is not None:
            num_refused += 1
            continue
        text = complete(bench, bench.compile(spec).matcher(), rng, ends)
        if text is None:
            continue
        parser = found.open(ParseContext(asked.callable))
        seen = collect([*parser.feed(text), *parser.finish()])
        assert (seen.warnings, seen.content.strip()) == ([], ""), (text, asked.callable)
        for call in seen.calls:
            num_calls += 1
            jsonschema.validate(json.loads(call.arguments), asked.callable[call.name])
        assert seen.calls, text
    assert num_calls > 10
    assert num_refused > 0 or name == "pythonic"


def complete(
    bench: Bench, matcher: Matcher, rng: random.Random, pieces: list[list[int]]
) -> str | None:
    """Return a whole text of random tokens and of pieces where they are allowed; None if long."""
    taken: list[int] = []
    while len(taken) < 800:
        allowed = bench.allowed(matcher)
        if matcher.may_end() and (not len(allowed) or rng.random() < 0.3):
            return spelt(bench, taken)
        usable = [piece for piece in pieces if piece[0] in allowed]
        piece = rng.choice(usable) if usable and rng.random() < 0.7 else [int(rng.choice(allowed))]
        for token_id in piece:
            if token_id not in bench.allowed(matcher):
                break
            assert matcher.accept(token_id)
            taken.append(token_id)
    return None


def wander(bench: Bench, matcher: Matcher, rng: random.Random, pieces: list[list[int]]) -> str:
    """Return a text of pieces where they are allowed, and otherwise of random tokens."""
    taken: list[int] = []
    while len(taken) < 120:
        for token_id in rng.choice(pieces):
            allowed = bench.allowed(matcher)
            if not len(allowed):
                break
            chosen = token_id if token_id in allowed else int(rng.choice(allowed))
            assert matcher.accept(chosen)
            taken.append(chosen)
            if chosen != token_id:
                break
        else:
            continue
        if not len(allowed):
            break
    return spelt(bench, taken)


def spelt(bench: Bench, taken: list[int]) -> str:
    names = {i: text.encode() for text, i in bench.vocabulary.special.items()}
    return b"".join(names.get(i, bench.vocabulary.tokens[i]) for i in taken).decode(
        errors="replace"
    )
