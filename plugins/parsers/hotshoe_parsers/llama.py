"""The JSON format of Llama 3: a call as the whole response, or behind a marker.

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}

Several calls are separated by `;`.

Source: Meta's prompt format documents of Llama 3.1, 3.2 and 3.3.
"""

from __future__ import annotations

from hotshoe.text.parsing import CallGrammar, ParseContext, ParserFormat, ResponseParser
from hotshoe_parsers.calls import (
    Kept,
    calls_in_text,
    end_call,
    json_call,
    json_tags,
    leading_calls,
)
from hotshoe_parsers.machine import Machine, Reader, Steps
from hotshoe_parsers.writer import Writer

_MARKER = "<|python_tag|>"


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str = "") -> Steps[None]:
            more = True
            while more:
                yield from reader.space()
                yield from json_call(reader, writer, context.tools)
                end_call(reader, writer)
                yield from reader.space()
                more = yield from reader.literal(";")

        yield from leading_calls(reader, writer, "{", read)
        yield from calls_in_text(reader, writer, (_MARKER,), read)

    return Machine(program)


def _calls(tools: Kept) -> CallGrammar:
    return CallGrammar(
        json_tags(tools, key="parameters"),
        triggers=(_MARKER,),
        leading=("{",),
        openings=("", _MARKER),
        separator=None,
    )


FORMAT = ParserFormat(
    "llama3_json",
    _open,
    markers=(_MARKER,),
    template_marks=("<|start_header_id|>", '"parameters'),
    keep_special_tokens=True,
    calls=_calls,
)
