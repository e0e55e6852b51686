"""The format of Qwen3-Coder: tags around every argument, whose values are plain text.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

The tool's schema says which values are strings; all others must be JSON of a type it allows. In a
string nothing is quoted or escaped, so a grammar keeps it to a list of values, but to no pattern.

Source: chat template and model card of Qwen3-Coder-480B-A35B-Instruct.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.calls import Kept, Tools, calls_in_text, end_call, known
from hotshoe_parsers.declared import (
    ANY_TYPE,
    Argument,
    Part,
    Schema,
    assertions,
    declared,
    optional,
    resolved,
    unconstrained,
)
from hotshoe_parsers.json_object import JsonObject
from hotshoe_parsers.machine import MAX_WORD_CHARS, Machine, Malformed, Reader, Steps
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
#: First character of a JSON value -> its types, but for numbers.
_BEGINS = {'"': str, "{": dict, "[": list, "t": bool, "f": bool, "n": type(None)}


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
        yield from _value(reader, writer, _types(_property(tools[name], key), tools[name]))
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

    if types.isdisjoint(_STRING):  # a string within the value may hold what ends one
        yield from reader.space()
        opening = yield from reader.peek()
        if opening in ("{", "["):
            yield from reader.scan(JsonObject(opening), take)
    if not (yield from reader.until(_VALUE_ENDS, take)):
        raise Malformed("the text ends within the arguments")
    writer.arguments('"' if types == _STRING else _as_json("".join(pieces), types))


def _as_json(text: str, types: frozenset[str]) -> str:
    bare = text.strip()
    bare = _PYTHON_NAMES.get(bare, bare)
    if not types.isdisjoint(_json_types(bare) - _STRING):
        return bare
    if types.isdisjoint(_STRING):
        raise Malformed(f"an argument is not of type {' or '.join(sorted(types))}")
    return json.dumps(text, ensure_ascii=False)


def _json_types(text: str) -> frozenset[str]:
    """Return the types that a JSON value has; none when the text is no value, or several."""
    # What stands alone may stand in both brackets; of several values, behind commas, either all
    # have keys or none has.
    for begin, end in (('{"":', "}"), ("[", "]")):
        wrapped = begin + text + end
        scanner = JsonObject(begin[0])
        if scanner.advance(wrapped, 0) != len(wrapped) or not scanner.done:
            return frozenset()
    number = int if text.removeprefix("-").isdecimal() else float
    return _TYPES[_BEGINS.get(text[0], number)]


def _property(schema: Mapping[str, Any], key: str) -> object:
    """Return the schema of one argument; a string where it is not described."""
    properties = schema.get("properties")
    return properties.get(key, {"type": "string"}) if isinstance(properties, Mapping) else True


def _types(found: object, root: Schema, depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema allows, as far as its outermost keywords say."""
    schema = resolved(found, root)
    if depth > _MAX_CHOICE_DEPTH:
        return ANY_TYPE
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return frozenset().union(*(_types(c, root, depth + 1) for c in schema[keyword]))
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset().union(*(_TYPES.get(type(value), ANY_TYPE) for value in values))
    return ANY_TYPE


def _calls(tools: Kept) -> CallGrammar:
    tags = []
    for name, schema in tools.items():
        begin, parts = f"{_FUNCTION}{name}>\n", _parameters(name, schema)
        tags.append(CallTag(name, f"{_BEGIN}\n{begin}", parts, f"\n{_END}"))
        tags.append(CallTag(name, begin, parts, ""))
    return CallGrammar(tuple(tags), triggers=(_BEGIN, _FUNCTION), separator="\n")


def _parameters(tool: str, schema: Schema | None) -> list[Part]:
    """Return the parts of what stands behind a function's name, with its end."""
    if schema is None:
        return [{"until": _FUNCTION_END}]
    parts: list[Part] = []
    for one in declared(tool, schema):
        if ">" in one.name or len(one.name) > MAX_WORD_CHARS:
            raise one.refusal("its name cannot be written in the format qwen3_xml")
        written = [{"text": f"{_PARAMETER}{one.name}>\n"}, *_written(one), {"text": "\n"}]
        parts += written if one.required else [optional(written)]
    return [*parts, {"text": _FUNCTION_END}]


def _written(argument: Argument) -> list[Part]:
    """Return the parts of a value, with its end.

    Raises:
        RequestError: It may be text that a keyword rules out.
    """
    schema = argument.schema
    types = _types(schema, schema)
    if types.isdisjoint(_STRING):
        return [*argument.as_json(), {"text": f"\n{_PARAMETER_END}"}]
    if types <= unconstrained(schema, schema):
        return [{"until": _PARAMETER_END}]
    spelt = [_spelt(value, types) for value in _values(schema, schema)]
    if not spelt or not all(spelt):
        keyword = min(assertions(schema) - {"type"}, default="type")
        raise argument.refusal(
            f"in the format qwen3_xml, JSON Schema keyword {keyword!r} cannot be kept in text"
        )
    choices = [[{"text": f"{text}\n{_PARAMETER_END}"}] for texts in spelt for text in texts]
    return [{"either": choices}]


def _values(schema: object, root: Schema) -> list[Any]:
    """Return all values of a schema; none where they are too many to say."""
    found = resolved(schema, root)
    keywords = assertions(found) - {"type"}
    if keywords == {"enum"} and isinstance(found["enum"], list):
        return found["enum"]
    if keywords == {"const"}:
        return [found["const"]]
    if keywords == {"anyOf"} and isinstance(found["anyOf"], list):
        choices = [_values(choice, root) for choice in found["anyOf"]]
        return [value for values in choices for value in values] if all(choices) else []
    return [None] if found.get("type") == "null" and not keywords else []


def _spelt(value: Any, types: frozenset[str]) -> list[str]:
    """Return how a value is written; nothing where it would be read as another."""
    plain = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    read = plain if types == _STRING else json.loads(_as_json(plain, types))
    if json.dumps(read) != json.dumps(value) or _PARAMETER_END in plain:
        return []
    names = [name for name, said in _PYTHON_NAMES.items() if said == plain]
    return [plain] if isinstance(value, str) else [plain, *names]


FORMAT = ParserFormat(
    "qwen3_xml",
    _open,
    markers=(_BEGIN, _FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END, _END),
    template_marks=(_BEGIN, _FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END),
    keep_special_tokens=True,  # which some markers are in some tokenizers
    calls=_calls,
)
