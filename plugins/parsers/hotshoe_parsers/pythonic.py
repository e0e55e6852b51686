"""Calls written as Python: Llama 3.2, Llama 4 and others, and Olmo 3.

    [get_weather(city="Paris", days=3), get_time(zone=None)]

A list as the whole response; Llama 4 may put it between `<|python_start|>` and `<|python_end|>`.
Olmo 3 writes a call a line, between `<function_calls>` and `</function_calls>`. Arguments are
keywords with literal values, given on as JSON. A grammar writes values as JSON, which is Python but
for three constants; those may be spelled either way.

Sources: Meta's prompt format documents of Llama 3.2, 3.3 and 4; chat template of Olmo 3.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe_parsers.calls import (
    Kept,
    Tools,
    call_list,
    calls_in_text,
    end_call,
    known,
    leading_calls,
)
from hotshoe_parsers.declared import Argument, Part, Schema, declared, optional
from hotshoe_parsers.machine import Machine, Malformed, Reader, Steps
from hotshoe_parsers.python_literals import items, literal
from hotshoe_parsers.writer import Writer

_BEGIN, _END = "<|python_start|>", "<|python_end|>"
_LINES, _LINES_END = "<function_calls>", "</function_calls>"
#: Of a call with any arguments: no literal has parentheses but within strings.
_ANY = r"""([^"'()]|"([^"\\\n]|\\.)*"|'([^'\\\n]|\\.)*')*"""
#: Of a call that need not have any: the grammar grows with their square.
_MAX_OPTIONAL = 32


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str = "") -> Steps[None]:
            yield from reader.space()
            yield from call_list(reader, writer, lambda: _call(reader, writer, context.tools))
            if marker:
                yield from reader.close(_END)

        yield from leading_calls(reader, writer, "[", read)
        yield from calls_in_text(reader, writer, (_BEGIN,), read)

    return Machine(program)


def _open_lines(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str) -> Steps[None]:
            yield from reader.space()
            while True:
                yield from _call(reader, writer, context.tools)
                end_call(reader, writer)
                yield from reader.space()
                if (yield from reader.peek()) in ("", "<"):
                    break
            yield from reader.close(_LINES_END)
            writer.trim()

        yield from calls_in_text(reader, writer, (_LINES,), read)

    return Machine(program)


def _call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    """Read `name(key=value, ...)` and leave the call open."""
    name = known((yield from reader.word("([{\"'")).strip(), tools)
    yield from reader.expect("(")
    seen: set[str] = set()

    def argument() -> Steps[None]:
        key = (yield from reader.word("=,()[]{}\"'")).strip()
        yield from reader.expect("=")
        if not key.isidentifier() or key in seen:
            raise Malformed(f"{key!r} is no name of an argument, or is given twice")
        seen.add(key)
        writer.arguments(f"{json.dumps(key, ensure_ascii=False)}: ")
        yield from reader.space()
        yield from literal(reader, writer.arguments)

    writer.start(name)
    writer.arguments("{")
    yield from items(reader, ")", argument, writer.arguments)
    writer.arguments("}")


def _tags(tools: Kept) -> tuple[CallTag, ...]:
    return tuple(CallTag(n, f"{n}(", _keywords(n, schema), ")") for n, schema in tools.items())


def _lines(tools: Kept) -> CallGrammar:
    return CallGrammar(
        _tags(tools),
        triggers=(_LINES,),
        openings=(f"{_LINES}\n",),
        separator="\n",
        closing=f"\n{_LINES_END}",
    )


def _calls(tools: Kept) -> CallGrammar:
    return CallGrammar(
        _tags(tools),
        triggers=(_BEGIN,),
        leading=("[",),
        openings=("[", f"{_BEGIN}["),
        separator=", ",
        closing="]",
    )


def _keywords(tool: str, schema: Schema | None) -> list[Part]:
    """Return the parts of what stands between a call's parentheses."""
    if schema is None:
        return [{"regex": _ANY}]
    found = declared(tool, schema)
    for one in found:
        if not one.name.isidentifier():
            raise one.refusal("its name cannot be written in the format pythonic")
    first = next((i for i, one in enumerate(found) if one.required), len(found))
    if first < len(found):
        before = [optional([*_keyword(one), {"text": ", "}]) for one in found[:first]]
        return [*before, *_keyword(found[first]), *_more(found[first + 1 :])]
    if first > _MAX_OPTIONAL:
        raise found[-1].refusal(f"of more than {_MAX_OPTIONAL} arguments, one must be required")
    firsts = [[*_keyword(one), *_more(found[i:])] for i, one in enumerate(found, 1)]
    return [{"either": [*firsts, []]}]  # of none, that is nothing


def _more(arguments: Sequence[Argument]) -> list[Part]:
    parts: list[Part] = []
    for one in arguments:
        written: list[Part] = [{"text": ", "}, *_keyword(one)]
        parts += written if one.required else [optional(written)]
    return parts


def _keyword(argument: Argument) -> list[Part]:
    return [{"text": f"{argument.name}="}, *argument.as_json()]


FORMAT = ParserFormat(
    "pythonic",
    _open,
    markers=(_BEGIN, _END),
    template_marks=("func_name1(params_name1=params_value1",),
    keep_special_tokens=True,
    calls=_calls,
)
OLMO3 = ParserFormat(
    "olmo3",
    _open_lines,
    markers=(_LINES, _LINES_END),
    template_marks=(_LINES, _LINES_END),
    keep_special_tokens=True,
    calls=_lines,
)
