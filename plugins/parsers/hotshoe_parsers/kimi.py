"""The format of Kimi K2: each call has an id, made of the tool's name and a number.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0
    <|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>

(without the line break). Numbers go on over a whole conversation.

Source: chat template and tool call guide of Kimi-K2-Instruct.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe_parsers.calls import Kept, Tools, arguments, bracketed_calls, end_call, known
from hotshoe_parsers.machine import Machine, Malformed, Reader, Steps
from hotshoe_parsers.writer import Writer

_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_PREFIX = "functions."


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        one = partial(_call, reader, writer, context.tools)
        yield from bracketed_calls(reader, writer, (_BEGIN, _CALL, _END), one)

    return Machine(program)


def _call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    call_id = (yield from reader.word("<")).strip()
    name, _, number = call_id.removeprefix(_PREFIX).rpartition(":")
    if not (number.isascii() and number.isdecimal()):
        raise Malformed(f"{call_id!r} is no id of a call")
    yield from reader.expect(_ARGUMENTS)
    yield from reader.space()
    writer.start(known(name, tools), call_id)
    yield from arguments(reader, writer)
    yield from reader.close(_CALL_END)
    end_call(reader, writer)


def _calls(tools: Kept) -> CallGrammar:
    def content(schema: Any) -> list[dict[str, Any]]:
        value = {"type": "object"} if schema is None else schema
        return [{"regex": "[0-9]{1,4}"}, {"text": _ARGUMENTS}, {"schema": value}]

    tags = [CallTag(n, f"{_CALL}{_PREFIX}{n}:", content(s), _CALL_END) for n, s in tools.items()]
    return CallGrammar(
        tuple(tags), triggers=(_BEGIN,), openings=(_BEGIN,), separator="", closing=_END
    )


FORMAT = ParserFormat(
    "kimi_k2",
    _open,
    markers=(_BEGIN, _CALL, _ARGUMENTS, _CALL_END, _END),
    template_marks=(_BEGIN, _CALL, _ARGUMENTS),
    keep_special_tokens=True,
    calls=_calls,
)
