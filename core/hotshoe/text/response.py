"""Chooses the formats of a model's responses, chains their parsers, and gathers events.

A front end opens one parser per response and feeds it text; reasoning is separated first, and
what is left is searched for tool calls. Formats themselves are plugins'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import blaming_plugin
from hotshoe.text.parsing import (
    ContentDelta,
    Event,
    MalformedCall,
    ParseContext,
    ParserFormat,
    ReasoningDelta,
    ResponseParser,
    ToolCallArguments,
    ToolCallStart,
)

#: What a format is for -> the hook that names such formats.
HOOKS = {"tool": "hotshoe_tool_parsers", "reasoning": "hotshoe_reasoning_parsers"}


def choose_format(
    plugins: PluginManager, role: str, name: str, templates: Mapping[str, str]
) -> ParserFormat | None:
    """Return the format of a model's responses, None for "none" or when "auto" finds none.

    Args:
        plugins: Where formats come from.
        role: "tool" or "reasoning".
        name: A format's name, "none", or "auto": the one with the most marks whose marks all
            occur in one of the chat templates.
        templates: The model's chat templates by name.

    Raises:
        PluginError: The name is unknown, or a plugin's format cannot be imported.
    """
    if name == "none":
        return None
    if name != "auto":
        return _named_format(plugins, role, name)
    formats = [_named_format(plugins, role, key) for key in sorted(plugins.mapping(HOOKS[role]))]
    matching = [f for f in formats if any(_matches(f, text) for text in templates.values())]
    return max(matching, key=lambda f: len(f.template_marks), default=None)


def _named_format(plugins: PluginManager, role: str, name: str) -> ParserFormat:
    reference = plugins.pick(f"{role} parser", name, HOOKS[role])
    with blaming_plugin(plugins, HOOKS[role], name):
        found: ParserFormat = resolve_lazy(reference)
        _ = found.template_marks
    return found


def _matches(found: ParserFormat, template: str) -> bool:
    marks = found.template_marks
    return bool(marks) and all(mark in template for mark in marks)


def open_parser(
    context: ParseContext, reasoning: ParserFormat | None, tool: ParserFormat | None
) -> ResponseParser:
    """Open the parser of one response; without any format, all text is content.

    A format in both roles, or with `reasoning_ends` of its own, reads the text alone.
    """
    formats = [reasoning, tool]
    if tool is not None and (tool is reasoning or tool.reasoning_ends):
        formats = [tool]
    return _Chain([one.open(context) for one in formats if one is not None])


class _Chain:
    """Gives the content that one parser finds to the next."""

    __slots__ = ("_parsers",)

    def __init__(self, parsers: Sequence[ResponseParser]) -> None:
        self._parsers = parsers

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = [ContentDelta(text)] if text else []
        for parser in self._parsers:
            events = _refine(events, parser)
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        for parser in self._parsers:
            events = [*_refine(events, parser), *parser.finish()]
        return events


def _refine(events: Iterable[Event], parser: ResponseParser) -> list[Event]:
    found: list[Event] = []
    for event in events:
        if isinstance(event, ContentDelta):
            found.extend(parser.feed(event.text))
        else:
            found.append(event)
    return found


@dataclass(slots=True)
class ParsedCall:
    """A whole tool call; `arguments` is JSON text."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(slots=True)
class ParsedResponse:
    """A whole response: malformed calls are in `content`, and `warnings` says why."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def collect(events: Iterable[Event]) -> ParsedResponse:
    """Gather the events of a whole response. Linear in its length."""
    content: list[str] = []
    reasoning: list[str] = []
    warnings: list[str] = []
    starts: dict[int, ToolCallStart] = {}
    arguments: dict[int, list[str]] = {}
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart(index):
                starts[index], arguments[index] = event, []
            case ToolCallArguments(index, delta):
                arguments[index].append(delta)
            case MalformedCall(text, reason, index):
                content.append(text)
                warnings.append(reason)
                if index is not None:
                    del starts[index]
    calls = [ParsedCall(s.name, "".join(arguments[i]), s.id) for i, s in sorted(starts.items())]
    return ParsedResponse("".join(content), "".join(reasoning), calls, warnings)
