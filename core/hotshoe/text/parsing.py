"""What a response's text means: content, reasoning and tool calls, as events of a parser.

A *format* is how one family of models writes them: data, and a function that opens a parser for
one response. Formats come from plugins, through hooks `hotshoe_tool_parsers` and
`hotshoe_reasoning_parsers`; `hotshoe.text.response` chooses and chains them. Nothing here reads
text itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer that the reader shall see."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. Indices count from 0 within a response; `id` is the model's own, if any."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments: JSON text, exactly as the model wrote it where it wrote JSON."""

    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is whole; its arguments are one valid JSON object."""

    index: int


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """What looked like a call is none.

    Attributes:
        text: All of it that has been read, with the opening marker and white space before it. It
            counts as content; what follows comes as content too.
        reason: What is wrong with it, for a log.
        index: When a `ToolCallStart` had been given out, its index: that call is void, and no
            `ToolCallEnd` follows. Later calls go on counting.
    """

    text: str
    reason: str
    index: int | None = None


Event = (
    ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd | MalformedCall
)


class ResponseParser(Protocol):
    """Reads one response's text as it comes.

    However the text is cut into pieces, the events say the same: only the deltas are cut
    elsewhere. No text makes a parser raise.
    """

    def feed(self, text: str) -> list[Event]:
        """Take what follows the text so far; return what is certain by now."""
        ...

    def finish(self) -> list[Event]:
        """End the text; return what was held back. An unfinished call is malformed."""
        ...


@dataclass(frozen=True, slots=True)
class ParseContext:
    """What a parser may know of the request.

    Attributes:
        tools: Names of the tools that may be called, with the JSON schemas of their arguments. A
            call of any other name is malformed. Empty for a request without tools, or with
            `tool_choice="none"`.
        prompt: The rendered prompt, or its end: it may have opened a reasoning section.
    """

    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class CallTag:
    """How a call of one tool is written: `begin`, `content`, `end`.

    Attributes:
        name: The tool's.
        begin, end: Text around its arguments.
        content: The arguments: JSON by this schema, any JSON object where it is None, or the parts
            of a structural tag's structure.
    """

    name: str
    begin: str
    content: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    end: str


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """How calls are written, so that a grammar can force them, or keep those in free text in form.

    Calls are one of `openings`, one of `tags`, any number of further ones, each after `separator`,
    then `closing`. The parser reads no other calls than those that this describes or that begin
    with what announces them.

    Attributes:
        tags: How a call of each tool is written; some formats have several ways.
        triggers: What announces calls in free text: an opening and a `begin`, joined, start so.
        leading: What announces calls only where a response, or text behind one of `marks`, begins.
        openings: Each of them opens calls.
        separator: None allows one call only, with which the response ends.
        closing: Ends calls.
        marks: Texts with special tokens that are neither content nor part of calls.
        reasoning: Marks around reasoning that the same format writes before calls and answers.
        answer: Mark before an answer.
    """

    tags: tuple[CallTag, ...]
    triggers: tuple[str, ...]
    leading: tuple[str, ...] = ()
    openings: tuple[str, ...] = ("",)
    separator: str | None = ""
    closing: str = ""
    marks: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ParserFormat:
    """How a family of models writes reasoning, tool calls, or both.

    Attributes:
        name: As users spell it.
        open: Returns a parser for one response.
        markers: The strings the parser looks for; many are tokens of their own.
        template_marks: Strings that all occur in the chat templates of such models.
        keep_special_tokens: Whether markers are special tokens in some tokenizers, so that the
            text must be made with `skip_special_tokens=False`.
        calls: Describes calls of these tools, by name: with the schema that their arguments must
            follow, or None where they need not follow any. None when no grammar can do so. Raises
            `RequestError` for what a schema says and the format cannot keep.
        reasoning_begins: A prompt that ends with one of these makes the response begin inside a
            reasoning section.
        reasoning_ends: What ends a reasoning section; a grammar for the answer begins behind it.
    """

    name: str
    open: Callable[[ParseContext], ResponseParser]
    markers: tuple[str, ...]
    template_marks: tuple[str, ...]
    keep_special_tokens: bool = False
    calls: Callable[[Mapping[str, Mapping[str, Any] | None]], CallGrammar] | None = None
    reasoning_begins: tuple[str, ...] = ()
    reasoning_ends: tuple[str, ...] = ()

    def reasons_after(self, prompt: str) -> bool:
        """Return whether the response to a prompt begins inside a reasoning section."""
        return bool(self.reasoning_begins) and prompt.rstrip().endswith(self.reasoning_begins)
