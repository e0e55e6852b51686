"""The format of Hermes, Qwen 2.5, Qwen 3, Granite 4 and Hotshoe's demo model.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Source: model card of Hermes-2-Pro-Mistral-7B; chat templates of Qwen2.5, Qwen3 and Granite 4.
"""

from __future__ import annotations

from hotshoe.text.parsing import CallGrammar, ParseContext, ParserFormat, ResponseParser
from hotshoe_parsers.calls import Kept, calls_in_text, end_call, json_call, json_tags
from hotshoe_parsers.machine import Machine, Reader, Steps
from hotshoe_parsers.writer import Writer

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str) -> Steps[None]:
            yield from reader.space()
            yield from json_call(reader, writer, context.tools)
            yield from reader.close(_END)
            end_call(reader, writer)

        yield from calls_in_text(reader, writer, (_BEGIN,), read)

    return Machine(program)


def _calls(tools: Kept) -> CallGrammar:
    tags = json_tags(tools, f"{_BEGIN}\n", f"\n{_END}")
    return CallGrammar(tags, triggers=(_BEGIN,), separator="\n")


FORMAT = ParserFormat(
    "hermes",
    _open,
    markers=(_BEGIN, _END),
    template_marks=(_BEGIN, '"name', '"arguments'),
    keep_special_tokens=True,  # which the markers are in some tokenizers
    calls=_calls,
)
