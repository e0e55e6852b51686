"""The formats of Gemma 4: calls whose strings stand between marks, and a channel of thoughts.

    <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3,flags:[true]}<tool_call|>
    <|channel>thought
    The user wants ...<channel|>

A text between `<|"|>` is literal: nothing in it is escaped. Names of arguments stand bare. A
grammar writes arguments as JSON, which is read as well.

Source: chat template of Gemma 4.
"""

from __future__ import annotations

import json

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.calls import Kept, Tools, calls_in_text, end_call, known
from hotshoe_parsers.json_object import JsonObject
from hotshoe_parsers.machine import Machine, Malformed, Reader, Steps, Take
from hotshoe_parsers.python_literals import MAX_DEPTH, items, literal
from hotshoe_parsers.writer import Writer

_BEGIN, _END, _CALL = "<|tool_call>", "<tool_call|>", "call:"
_QUOTE = '<|"|>'
_IN_STRING = StopAutomaton((_QUOTE,))
#: What no bare name has in it.
_NOT_IN_NAMES = ":,{}[]<>\"'"


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str) -> Steps[None]:
            yield from _call(reader, writer, context.tools)

        yield from calls_in_text(reader, writer, (_BEGIN,), read)

    return Machine(program)


def _call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
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
        yield from _members(reader, writer.arguments, 0)
    yield from reader.close(_END)
    end_call(reader, writer)


def _members(reader: Reader, take: Take, depth: int) -> Steps[None]:
    """Read `name:value,...}`; no name may come twice."""
    seen: set[str] = set()

    def member() -> Steps[None]:
        name = (yield from reader.word(_NOT_IN_NAMES)).strip()
        if not name or name in seen:
            raise Malformed(f"{name!r} is no name of an argument, or is given twice")
        seen.add(name)
        yield from reader.expect(":")
        yield from reader.space()
        take(f"{json.dumps(name, ensure_ascii=False)}: ")
        yield from _value(reader, take, depth + 1)

    yield from items(reader, "}", member, take)
    take("}")


def _value(reader: Reader, take: Take, depth: int) -> Steps[None]:
    """Read a value; `take` gets JSON text.

    Raises:
        Malformed: What comes is none, or is nested deeper than MAX_DEPTH.
    """
    if depth > MAX_DEPTH:
        raise Malformed(f"the arguments are nested deeper than {MAX_DEPTH}")
    char = yield from reader.peek()
    if char == "<":
        yield from _text(reader, take)
    elif char == "{":
        yield from reader.expect("{")
        take("{")
        yield from _members(reader, take, depth)
    elif char == "[":
        yield from reader.expect("[")
        take("[")
        yield from items(reader, "]", lambda: _value(reader, take, depth + 1), take)
        take("]")
    else:
        yield from literal(reader, take, depth)


def _text(reader: Reader, take: Take) -> Steps[None]:
    """Read literal text between marks."""
    yield from reader.expect(_QUOTE)
    take('"')
    ended = yield from reader.until(
        _IN_STRING, lambda text: take(json.dumps(text, ensure_ascii=False)[1:-1])
    )
    if not ended:
        raise Malformed("a string does not end")
    take('"')


def _calls(tools: Kept) -> CallGrammar:
    tags = [CallTag(n, f"{_BEGIN}{_CALL}{n}", schema, _END) for n, schema in tools.items()]
    return CallGrammar(tuple(tags), triggers=(_BEGIN,), separator="")


FORMAT = ParserFormat(
    "gemma4",
    _open,
    markers=(_BEGIN, _QUOTE, _END),
    template_marks=(_BEGIN, _END),
    keep_special_tokens=True,
    calls=_calls,
)
