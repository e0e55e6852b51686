"""The two formats of Mistral: a JSON array of calls, and since 2025 a marker for every call.

    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "a1B2c3D4e"}]
    [TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Paris"}

One parser reads both, and the form in between that has neither `[CALL_ID]` nor `[ARGS]`.

Source: mistral-common's tokenizers v3, v11 and v13; chat templates of Mistral-Small-3.1 and 3.2.
"""

from __future__ import annotations

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe_parsers.calls import (
    Kept,
    Tools,
    arguments,
    call_list,
    calls_in_text,
    end_call,
    json_call,
    json_tags,
    known,
)
from hotshoe_parsers.machine import Machine, Reader, Steps
from hotshoe_parsers.writer import Writer

_BEGIN, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str) -> Steps[None]:
            yield from reader.space()
            if (yield from reader.peek()) == "[":
                yield from call_list(
                    reader, writer, lambda: json_call(reader, writer, context.tools)
                )
            else:
                yield from _marked_call(reader, writer, context.tools)

        yield from calls_in_text(reader, writer, (_BEGIN,), read)

    return Machine(program)


def _marked_call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    name = known((yield from reader.word("[{")).strip(), tools)
    call_id = None
    if (yield from reader.literal(_ID)):
        call_id = (yield from reader.word("[{")).strip() or None
    yield from reader.literal(_ARGUMENTS)
    yield from reader.space()
    writer.start(name, call_id)
    yield from arguments(reader, writer)
    end_call(reader, writer)


def _marked_calls(tools: Kept) -> CallGrammar:
    tags = [CallTag(name, f"{_BEGIN}{name}{_ARGUMENTS}", s, "") for name, s in tools.items()]
    return CallGrammar(tuple(tags), triggers=(_BEGIN,))


def _array_of_calls(tools: Kept) -> CallGrammar:
    return CallGrammar(
        json_tags(tools), triggers=(_BEGIN,), openings=(f"{_BEGIN}[",), separator=", ", closing="]"
    )


FORMAT = ParserFormat(
    "mistral",
    _open,
    markers=(_BEGIN, _ID, _ARGUMENTS),
    template_marks=(_BEGIN, _ARGUMENTS),
    keep_special_tokens=True,
    calls=_marked_calls,
)
ARRAY_FORMAT = ParserFormat(
    "mistral_array",
    _open,
    markers=(_BEGIN,),
    template_marks=(_BEGIN,),
    keep_special_tokens=True,
    calls=_array_of_calls,
)
