"""Formats of Gemma 4 and FunctionGemma: calls whose strings stand between marks.

    <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3,flags:[true]}<tool_call|>
    <start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>

A text between `<|"|>` is literal: nothing in it is escaped. Names of arguments stand bare. A
grammar writes arguments as JSON, which is read as well.

Sources: chat template of Gemma 4; Google's description of FunctionGemma's format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.calls import Kept, Tools, calls_in_text, end_call, known
from hotshoe_parsers.json_object import JsonObject
from hotshoe_parsers.machine import Machine, Malformed, Reader, Steps, Take
from hotshoe_parsers.python_literals import MAX_DEPTH, items, literal
from hotshoe_parsers.writer import Writer

_CALL = "call:"


@dataclass(frozen=True, slots=True)
class Marks:
    """How one format writes calls: before and behind one, and around a text."""

    name: str
    begin: str
    end: str
    quote: str


#: What no bare name has in it.
_NOT_IN_NAMES = ":,{}[]<>\"'"


def _open(marks: Marks, context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str) -> Steps[None]:
            yield from _call(reader, writer, context.tools, marks)

        yield from calls_in_text(reader, writer, (marks.begin,), read)

    return Machine(program)


def _call(reader: Reader, writer: Writer, tools: Tools, marks: Marks) -> Steps[None]:
    yield from reader.space()
    yield from reader.expect(_CALL)
    name = known((yield from reader.word("{<")).strip(), tools)
    yield from reader.expect("{")
    yield from reader.space()
    first = yield from reader.peek()
    writer.start(name)
    writer.arguments("{")
    if first == '"':
        rest = JsonObject()
        rest.advance("{", 0)
        yield from reader.scan(rest, writer.arguments)
    else:
        yield from _Values(reader, writer.arguments, marks.quote).members(0)
    yield from reader.close(marks.end)
    end_call(reader, writer)


class _Values:
    """Reads values, whose texts stand between two of `quote`; `take` gets JSON text."""

    def __init__(self, reader: Reader, take: Take, quote: str) -> None:
        self._reader, self._take, self._quote = reader, take, quote
        self._ends = StopAutomaton((quote,))

    def members(self, depth: int) -> Steps[None]:
        """Read `name:value,...}`; no name may come twice."""
        reader, take, seen = self._reader, self._take, set[str]()

        def member() -> Steps[None]:
            name = (yield from reader.word(_NOT_IN_NAMES)).strip()
            if not name or name in seen:
                raise Malformed(f"{name!r} is no name of an argument, or is given twice")
            seen.add(name)
            yield from reader.expect(":")
            yield from reader.space()
            take(f"{json.dumps(name, ensure_ascii=False)}: ")
            yield from self._value(depth + 1)

        yield from items(reader, "}", member, take)
        take("}")

    def _value(self, depth: int) -> Steps[None]:
        """Read a value.

        Raises:
            Malformed: What comes is none, or is nested deeper than MAX_DEPTH.
        """
        reader, take = self._reader, self._take
        if depth > MAX_DEPTH:
            raise Malformed(f"the arguments are nested deeper than {MAX_DEPTH}")
        char = yield from reader.peek()
        if char == self._quote[0]:
            yield from self._text()
        elif char == "{":
            yield from reader.expect("{")
            take("{")
            yield from self.members(depth)
        elif char == "[":
            yield from reader.expect("[")
            take("[")
            yield from items(reader, "]", lambda: self._value(depth + 1), take)
            take("]")
        else:
            yield from literal(reader, take, depth)

    def _text(self) -> Steps[None]:
        """Read literal text between marks."""
        take = self._take
        yield from self._reader.expect(self._quote)
        take('"')
        ended = yield from self._reader.until(
            self._ends, lambda text: take(json.dumps(text, ensure_ascii=False)[1:-1])
        )
        if not ended:
            raise Malformed("a string does not end")
        take('"')


def _calls(marks: Marks, tools: Kept) -> CallGrammar:
    before = f"{marks.begin}{_CALL}"
    tags = [CallTag(name, before + name, schema, marks.end) for name, schema in tools.items()]
    return CallGrammar(tuple(tags), triggers=(marks.begin,), separator="")


TABLE = (
    Marks("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'),
    Marks("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
)
FORMATS = {
    marks.name: ParserFormat(
        marks.name,
        partial(_open, marks),
        markers=(marks.begin, marks.quote, marks.end),
        template_marks=(marks.begin, marks.end),
        keep_special_tokens=True,
        calls=partial(_calls, marks),
    )
    for marks in TABLE
}
FORMAT, FUNCTION = FORMATS.values()
