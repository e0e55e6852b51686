"""Choosing formats, chaining parsers, and gathering events."""

import pytest

from hotshoe.errors import PluginError
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.hookspecs import HOOK_API
from hotshoe.plugins.manager import EntryPoint
from hotshoe.text.parsing import (
    ContentDelta,
    Event,
    MalformedCall,
    ParseContext,
    ParserFormat,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from hotshoe.text.response import ParsedCall, choose_format, collect, open_parser


class Splitter:
    """Gives text up to a bar as something else, the rest as content; holds the last character."""

    def __init__(self, bar: str, kind: type[Event]) -> None:
        self.bar, self.kind, self.seen, self.held = bar, kind, False, ""

    def feed(self, text: str) -> list[Event]:
        text = self.held + text
        self.held = text[-1:]
        return self.split(text[:-1])

    def finish(self) -> list[Event]:
        return self.split(self.held)

    def split(self, text: str) -> list[Event]:
        events: list[Event] = []
        for char in text:
            if char == self.bar:
                self.seen = True
            else:
                events.append(ContentDelta(char) if self.seen else self.kind(char))
        return events


def a_format(name: str, bar: str, marks: tuple[str, ...] = (), ends: tuple[str, ...] = ()):
    kind = ReasoningDelta if bar == "|" else lambda text: ToolCallStart(0, text)
    return ParserFormat(name, lambda _: Splitter(bar, kind), (bar,), marks, reasoning_ends=ends)


REASONING = a_format("r", "|", ("<r>",), ends=("|",))
TOOL = a_format("t", "!", ("<t>",))
SPECIAL = a_format("s", "!", ("<t>", "<s>"))
BOTH = a_format("both", "|", ("<both>",), ends=("|",))
UNMARKED = a_format("u", "!")


class Plugin:
    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_tool_parsers(self):
        return {"t": TOOL, "s": SPECIAL, "u": UNMARKED}

    @hookimpl
    def hotshoe_reasoning_parsers(self):
        return {"r": REASONING}


class Defective:
    HOTSHOE_HOOK_API = HOOK_API

    @hookimpl
    def hotshoe_tool_parsers(self):
        return {"gone": "no.such.module:FORMAT", "odd": "json:dumps"}


@pytest.fixture
def plugins() -> PluginManager:
    return PluginManager([EntryPoint("p", "tests", "0", Plugin)])


def run(parser, pieces) -> list[Event]:
    return [e for piece in pieces for e in parser.feed(piece)] + parser.finish()


@pytest.mark.parametrize(
    ("name", "template", "found"),
    [
        ("none", "<t>", None),
        ("t", "", TOOL),
        ("u", "<t>", UNMARKED),
        ("auto", "a <t>", TOOL),
        ("auto", "<s> <t>", SPECIAL),
        ("auto", "<s>", None),
        ("auto", "", None),
    ],
)
def test_a_format_is_chosen_by_name_or_template(plugins, name, template, found) -> None:
    assert choose_format(plugins, "tool", name, {"default": "", "tool_use": template}) is found


def test_marks_are_looked_for_in_one_template(plugins) -> None:
    assert choose_format(plugins, "tool", "auto", {"a": "<s>", "b": "<t>"}) is TOOL
    assert choose_format(plugins, "reasoning", "auto", {"a": "<r>"}) is REASONING
    assert choose_format(plugins, "reasoning", "auto", {}) is None


def test_an_unknown_format_is_an_error(plugins) -> None:
    with pytest.raises(PluginError, match=r"unknown tool parser 'x'.*choices: s, t, u"):
        choose_format(plugins, "tool", "x", {})


@pytest.mark.parametrize(("name", "cause"), [("gone", "ModuleNotFound"), ("odd", "Attribute")])
def test_the_plugin_of_a_defective_format_is_named(name: str, cause: str) -> None:
    plugins = PluginManager([EntryPoint("bad", "tests", "0", Defective)])
    with pytest.raises(PluginError, match=rf"plugin bad .* is defective: {name}: {cause}Error"):
        choose_format(plugins, "tool", name, {})
    with pytest.raises(PluginError, match="--disable-plugins bad"):
        choose_format(plugins, "tool", "auto", {"a": "<t>"})


def test_without_formats_all_text_is_content() -> None:
    events = run(open_parser(ParseContext(), None, None), ["a|", "", "b!c"])
    assert events == [ContentDelta("a|"), ContentDelta("b!c")]


@pytest.mark.parametrize("pieces", [["ab|cd!ef"], list("ab|cd!ef"), ["ab|c", "d!ef"]])
def test_reasoning_comes_first_and_tools_in_the_rest(pieces: list[str]) -> None:
    events = run(open_parser(ParseContext(), REASONING, TOOL), pieces)
    kinds = (ReasoningDelta, ToolCallStart, ContentDelta)
    assert [kinds.index(type(e)) for e in events] == [0, 0, 1, 1, 2, 2]
    assert [getattr(e, "text", None) or e.name for e in events] == list("abcdef")


@pytest.mark.parametrize(("reasoning", "tool"), [(BOTH, BOTH), (REASONING, BOTH), (None, BOTH)])
def test_a_format_in_both_roles_reads_alone(reasoning, tool) -> None:
    events = run(open_parser(ParseContext(), reasoning, tool), ["a|b|"])
    assert events == [ReasoningDelta("a"), ContentDelta("b")]


def test_the_context_reaches_the_parser() -> None:
    seen = []
    found = ParserFormat("x", lambda c: seen.append(c) or Splitter("|", ContentDelta), (), ())
    context = ParseContext({"f": {}}, "prompt")
    open_parser(context, None, found)
    assert seen == [context]


def test_events_are_gathered() -> None:
    response = collect(
        [
            ReasoningDelta("h"),
            ReasoningDelta("m"),
            ContentDelta("a"),
            ToolCallStart(0, "f"),
            ToolCallArguments(0, "{"),
            MalformedCall("<f {", "no end", 0),
            ContentDelta("b"),
            ToolCallStart(1, "g", "id"),
            ToolCallArguments(1, "{"),
            ToolCallArguments(1, "}"),
            ToolCallEnd(1),
            MalformedCall("<", "no name"),
        ]
    )
    assert response.reasoning == "hm"
    assert response.content == "a<f {b<"
    assert response.calls == [ParsedCall("g", "{}", "id")]
    assert response.warnings == ["no end", "no name"]


def test_nothing_is_gathered_from_nothing() -> None:
    response = collect([])
    assert (response.content, response.reasoning, response.calls, response.warnings) == (
        "",
        "",
        [],
        [],
    )
