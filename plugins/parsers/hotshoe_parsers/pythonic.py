"""The format of Llama 3.2, Llama 4 and others: a list of Python calls as the whole response.

    [get_weather(city="Paris", days=3), get_time(zone=None)]

Llama 4 may put it between `<|python_start|>` and `<|python_end|>`. Arguments are keywords with
literal values, given on as JSON.

Source: Meta's prompt format documents of Llama 3.2, 3.3 and 4.
"""

from __future__ import annotations

import json

from hotshoe.text.parsing import ParseContext, ParserFormat, ResponseParser
from hotshoe_parsers.calls import Tools, call_list, calls_in_text, known, leading_calls
from hotshoe_parsers.machine import Machine, Malformed, Reader, Steps
from hotshoe_parsers.python_literals import items, literal
from hotshoe_parsers.writer import Writer

_BEGIN, _END = "<|python_start|>", "<|python_end|>"


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


FORMAT = ParserFormat(
    "pythonic",
    _open,
    markers=(_BEGIN, _END),
    template_marks=("func_name1(params_name1=params_value1",),
    keep_special_tokens=True,
)
