"""The format of Granite 3: a marker and a JSON array of calls.

    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]

Source: chat templates and model cards of granite-3.1 to 3.3-8b-instruct, some of which write
`<tool_call>` instead.
"""

from __future__ import annotations

from hotshoe.text.parsing import CallGrammar, ParseContext, ParserFormat, ResponseParser
from hotshoe_parsers.calls import Kept, call_list, calls_in_text, json_call, json_tags
from hotshoe_parsers.machine import Machine, Reader, Steps
from hotshoe_parsers.writer import Writer

_MARKERS = ("<|tool_call|>", "<tool_call>")


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str) -> Steps[None]:
            yield from reader.space()
            yield from call_list(reader, writer, lambda: json_call(reader, writer, context.tools))

        yield from calls_in_text(reader, writer, _MARKERS, read)

    return Machine(program)


def _calls(tools: Kept) -> CallGrammar:
    openings = tuple(f"{marker}[" for marker in _MARKERS)
    return CallGrammar(
        json_tags(tools), triggers=_MARKERS, openings=openings, separator=", ", closing="]"
    )


FORMAT = ParserFormat(
    "granite",
    _open,
    markers=_MARKERS,
    template_marks=("<|tool_call|>", "<|start_of_role|>"),
    keep_special_tokens=True,
    calls=_calls,
)
