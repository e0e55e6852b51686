"""The formats of DeepSeek V3 and R1, and of V3.1; one parser reads both.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}
    <｜tool▁call▁end｜><｜tool▁calls▁end｜>         (without the line break)

Source: chat templates of DeepSeek-R1 and DeepSeek-V3.1.
"""

from __future__ import annotations

from functools import partial

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe_parsers.calls import Kept, Tools, arguments, bracketed_calls, end_call, known
from hotshoe_parsers.machine import Machine, Malformed, Reader, Steps
from hotshoe_parsers.writer import Writer

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_TYPE, _FENCE, _FENCE_END = "function", "\n```json\n", "\n```"
_MARKERS = (_BEGIN, _CALL, _SEPARATOR, _CALL_END, _END)


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        one = partial(_call, reader, writer, context.tools)
        yield from bracketed_calls(reader, writer, (_BEGIN, _CALL, _END), one)

    return Machine(program)


def _call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    word = yield from reader.word("<")
    yield from reader.expect(_SEPARATOR)
    fenced = (yield from reader.peek()) != "{"
    if fenced:
        if word != _TYPE:
            raise Malformed(f"{word!r} is no type of tool")
        word = yield from reader.word("\n")
        yield from reader.expect(_FENCE)
    writer.start(known(word.strip(), tools))
    yield from arguments(reader, writer)
    if fenced:
        yield from reader.close(_FENCE_END.strip())
    yield from reader.close(_CALL_END)
    end_call(reader, writer)


def _calls(tools: Kept, before: str, after: str, separator: str) -> CallGrammar:
    tags = [CallTag(n, before.format(n), schema, after) for n, schema in tools.items()]
    return CallGrammar(
        tuple(tags), triggers=(_BEGIN,), openings=(_BEGIN,), separator=separator, closing=_END
    )


def _fenced_calls(tools: Kept) -> CallGrammar:
    return _calls(
        tools, f"{_CALL}{_TYPE}{_SEPARATOR}{{}}{_FENCE}", f"{_FENCE_END}{_CALL_END}", "\n"
    )


def _plain_calls(tools: Kept) -> CallGrammar:
    return _calls(tools, f"{_CALL}{{}}{_SEPARATOR}", _CALL_END, "")


V3 = ParserFormat(
    "deepseek_v3",
    _open,
    markers=_MARKERS,
    template_marks=(_BEGIN, "```json"),
    keep_special_tokens=True,
    calls=_fenced_calls,
)
V31 = ParserFormat(
    "deepseek_v31",
    _open,
    markers=_MARKERS,
    template_marks=(_BEGIN,),
    keep_special_tokens=True,
    calls=_plain_calls,
)
