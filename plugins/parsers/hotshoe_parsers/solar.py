"""The format of Solar Open's calls: an id, a name and JSON, each behind a mark.

    <|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>
    {"city": "Paris"}<|tool_call:end|><|calls|>

(without the line break). The last mark ends the response, so that it is seldom seen. Ids are drawn
by the model, which may draw one twice: they are read and left out.

Source: chat template of Solar-Open-100B.
"""

from __future__ import annotations

from functools import partial

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe_parsers.calls import Kept, Tools, arguments, bracketed_calls, end_call, known
from hotshoe_parsers.machine import Machine, Reader, Steps
from hotshoe_parsers.writer import Writer

_BEGIN, _END = "<|tool_calls|>", "<|calls|>"
_CALL, _NAME, _ARGUMENTS, _CALL_END = (
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
)


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        one = partial(_call, reader, writer, context.tools)
        yield from bracketed_calls(reader, writer, (_BEGIN, _CALL, _END), one)

    return Machine(program)


def _call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    yield from reader.word("<")
    yield from reader.expect(_NAME)
    name = yield from reader.word("<")
    yield from reader.expect(_ARGUMENTS)
    yield from reader.space()
    writer.start(known(name.strip(), tools))
    yield from arguments(reader, writer)
    yield from reader.close(_CALL_END)
    end_call(reader, writer)


def _calls(tools: Kept) -> CallGrammar:
    tags = [
        CallTag(name, f"{_CALL}0{_NAME}{name}{_ARGUMENTS}", schema, _CALL_END)
        for name, schema in tools.items()
    ]
    return CallGrammar(tuple(tags), triggers=(_BEGIN,), openings=(_BEGIN,), separator="")


FORMAT = ParserFormat(
    "solar_open",
    _open,
    markers=(_BEGIN, _CALL, _NAME, _ARGUMENTS, _CALL_END, _END),
    template_marks=(_BEGIN, _CALL, _ARGUMENTS),
    keep_special_tokens=True,
    calls=_calls,
)
