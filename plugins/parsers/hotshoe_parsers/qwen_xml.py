"""The format of Qwen3-Coder: tags around every argument, whose values are plain text.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

The tool's schema says which values are strings; all others must be JSON of a type it allows.

Source: chat template and model card of Qwen3-Coder-480B-A35B-Instruct.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotshoe.text.parsing import ParseContext, ParserFormat, ResponseParser
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.calls import Tools, calls_in_text, end_call, known
from hotshoe_parsers.json_object import JsonObject
from hotshoe_parsers.machine import Machine, Malformed, Reader, Steps
from hotshoe_parsers.writer import Writer

_BEGIN, _END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
#: One line break before a closing tag belongs to it.
_VALUE_ENDS = StopAutomaton((_PARAMETER_END, f"\n{_PARAMETER_END}"))
_MAX_CHOICE_DEPTH = 8
_STRING = frozenset({"string"})
_PYTHON_NAMES = {"True": "true", "False": "false", "None": "null"}
_TYPES: dict[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    str: _STRING,
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}
_ANY = frozenset().union(*_TYPES.values())


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str) -> Steps[None]:
            if marker == _BEGIN:
                yield from reader.space()
                yield from reader.expect(_FUNCTION)
            yield from _call(reader, writer, context.tools)
            if marker == _BEGIN:
                yield from reader.close(_END)
            end_call(reader, writer)

        yield from calls_in_text(reader, writer, (_BEGIN, _FUNCTION), read)

    return Machine(program)


def _call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    name = known((yield from reader.word(">")), tools)
    yield from reader.expect(">")
    writer.start(name)
    seen: set[str] = set()
    yield from reader.space()
    while not (yield from reader.literal(_FUNCTION_END)):
        yield from reader.expect(_PARAMETER)
        key = yield from reader.word(">")
        if key in seen:
            raise Malformed(f"argument {key!r} is given twice")
        writer.arguments(f"{', ' if seen else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        seen.add(key)
        yield from reader.expect(">")
        yield from reader.literal("\n")
        yield from _value(reader, writer, _types(_property(tools[name], key)))
        yield from reader.space()
    writer.arguments("}" if seen else "{}")


def _value(reader: Reader, writer: Writer, types: frozenset[str]) -> Steps[None]:
    """Read a value: a string is given on as it comes, anything else once it is whole."""
    pieces: list[str] = []
    if types == _STRING:
        writer.arguments('"')

    def take(text: str) -> None:
        if types == _STRING:
            writer.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            pieces.append(text)

    if not (yield from reader.until(_VALUE_ENDS, take)):
        raise Malformed("the text ends within the arguments")
    writer.arguments('"' if types == _STRING else _as_json("".join(pieces), types))


def _as_json(text: str, types: frozenset[str]) -> str:
    bare = text.strip()
    bare = _PYTHON_NAMES.get(bare, bare)
    if not types.isdisjoint(_TYPES.get(_json_type(bare), frozenset()) - _STRING):
        return bare
    if types.isdisjoint(_STRING):
        raise Malformed(f"an argument is not of type {' or '.join(sorted(types))}")
    return json.dumps(text, ensure_ascii=False)


def _json_type(text: str) -> type:
    """Return the Python type of a JSON value, `object` when the text is none."""
    wrapped = f'{{"":{text}}}'
    scanner = JsonObject()
    if scanner.advance(wrapped, 0) != len(wrapped) or not scanner.done:
        return object
    try:
        return type(json.loads(text))
    except ValueError:
        return object


def _property(schema: Mapping[str, Any], key: str) -> object:
    """Return the schema of one argument; a string where it is not described."""
    properties = schema.get("properties")
    return properties.get(key, {"type": "string"}) if isinstance(properties, Mapping) else True


def _types(schema: object, depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema allows, as far as its outermost keywords say."""
    if not isinstance(schema, Mapping) or depth > _MAX_CHOICE_DEPTH:
        return _ANY
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return frozenset().union(*(_types(choice, depth + 1) for choice in schema[keyword]))
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset().union(*(_TYPES.get(type(value), _ANY) for value in values))
    return _ANY


FORMAT = ParserFormat(
    "qwen3_xml",
    _open,
    markers=(_BEGIN, _FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END, _END),
    template_marks=(_BEGIN, _FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END),
    keep_special_tokens=True,  # which some markers are in some tokenizers
)
