"""The format of Kimi K3: tags of special tokens, whose attributes say what a value is.

    <|open|>tools<|sep|>
      <|open|>call tool="get_weather" index="1"<|sep|>
        <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>
      <|close|>call<|sep|>
    <|close|>tools<|sep|>

(without the white space). A string stands as it is, all other values are JSON. In attributes `&`
and `"` are escaped. The answer stands before, between tags of its own, and a tag ends the message;
these are no content.

Source: Kimi K3's description of its encoding.
"""

from __future__ import annotations

import json
from dataclasses import replace

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.calls import Kept, Tools, calls_in_text, end_call, known
from hotshoe_parsers.declared import ANY_TYPE, Argument, Part, Schema, declared, optional
from hotshoe_parsers.machine import MAX_WORD_CHARS, Machine, Malformed, Reader, Steps
from hotshoe_parsers.writer import Writer
from hotshoe_parsers.xml_calls import Tags, property_of, read_value, types_of, value_parts

SEP = "<|sep|>"
BEGIN, END = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"
CALL, CALL_END = '<|open|>call tool="', "<|close|>call<|sep|>"
INDEX = '" index="'
KEY, TYPE, VALUE_END = '<|open|>argument key="', '" type="', "<|close|>argument<|sep|>"
RESPONSE, RESPONSE_END = "<|open|>response<|sep|>", "<|close|>response<|sep|>"
MESSAGE_END = "<|close|>message<|sep|>"
#: What is neither content nor part of calls.
MARKS = (RESPONSE, RESPONSE_END, MESSAGE_END)
_STRING = "string"
_KINDS = (ANY_TYPE - {"integer"}) | {"number"}
_ENDS = StopAutomaton((VALUE_END,))
#: How a grammar writes the value of an argument, but for its type.
TAGS = Tags("kimi_k3", BEGIN, END, CALL, '"', CALL_END, KEY, ('"',), VALUE_END, gap="")


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str) -> Steps[None]:
            if marker in MARKS:
                return
            yield from reader.space()
            yield from reader.expect(CALL)
            while True:
                yield from _call(reader, writer, context.tools)
                end_call(reader, writer)
                yield from reader.space()
                if not (yield from reader.literal(CALL)):
                    break
            yield from reader.close(END)
            writer.trim()

        yield from calls_in_text(reader, writer, (BEGIN, *MARKS), read)

    return Machine(program)


def _call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    name = known(_unescaped((yield from reader.word('"'))), tools)
    yield from reader.expect(INDEX)
    yield from reader.word('"')
    yield from reader.expect(f'"{SEP}')
    writer.start(name)
    schema, seen = tools[name], set[str]()
    yield from reader.space()
    while not (yield from reader.literal(CALL_END)):
        yield from reader.expect(KEY)
        key = _unescaped((yield from reader.word('"')))
        if key in seen:
            raise Malformed(f"argument {key!r} is given twice")
        yield from reader.expect(TYPE)
        kind = yield from reader.word('"')
        yield from reader.expect(f'"{SEP}')
        writer.arguments(f"{', ' if seen else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        seen.add(key)
        yield from read_value(reader, writer, _ENDS, _types(kind, property_of(schema, key), schema))
        yield from reader.space()
    writer.arguments("}" if seen else "{}")


def _types(kind: str, found: object, root: Schema) -> frozenset[str]:
    """Return the JSON types that a value may have whose tag says this type."""
    if kind not in _KINDS:
        raise Malformed(f"{kind!r} is no type of an argument")
    if kind == _STRING:
        return frozenset({_STRING})
    return (types_of(found, root) or ANY_TYPE) - {_STRING} or ANY_TYPE - {_STRING}


def _unescaped(text: str) -> str:
    return text.replace("&quot;", '"').replace("&amp;", "&")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _calls(tools: Kept) -> CallGrammar:
    tags = [
        CallTag(name, f"{CALL}{_escaped(name)}{INDEX}", _parameters(name, schema), "")
        for name, schema in tools.items()
    ]
    return CallGrammar(
        tuple(tags), triggers=(BEGIN,), openings=(BEGIN,), separator="", closing=END, marks=MARKS
    )


def _parameters(tool: str, schema: Schema | None) -> list[Part]:
    """Return the parts of what stands behind a tool's name, with the call's end."""
    parts: list[Part] = [{"regex": "[0-9]{1,4}"}, {"text": f'"{SEP}'}]
    if schema is None:
        return [*parts, {"until": CALL_END}]
    for one in declared(tool, schema):
        if len(_escaped(one.name)) > MAX_WORD_CHARS:
            raise one.refusal("its name cannot be written in the format kimi_k3")
        made = [{"text": f"{KEY}{_escaped(one.name)}"}, *value_parts(_tags_of(one), one)]
        parts += made if one.required else [optional(made)]
    return [*parts, {"text": CALL_END}]


def _tags_of(argument: Argument) -> Tags:
    """Return the tags of an argument; one that may be of several types but text has the first."""
    types = types_of(argument.schema, argument.schema) - {_STRING}
    kind = min(types, default="null").replace("integer", "number")
    return replace(TAGS, kinds=(f'{TYPE}{_STRING}"{SEP}', f'{TYPE}{kind}"{SEP}'))


FORMAT = ParserFormat(
    "kimi_k3",
    _open,
    markers=(BEGIN, CALL, CALL_END, KEY, VALUE_END, END, *MARKS),
    template_marks=("<|open|>", "<|close|>", "<|sep|>"),
    keep_special_tokens=True,
    calls=_calls,
)
