"""The formats of MiniMax M3: a tag for every value, each behind a mark of its own.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="f">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

Members of an object are tags of their names, and those of a list tags `item`. A string stands
without quotes. The tool's schema says which values are strings; all others are JSON. A grammar
writes objects and lists as JSON, which is read as well.

Source: chat template of MiniMax-M3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotshoe.text.parsing import CallGrammar, CallTag, ParseContext, ParserFormat, ResponseParser
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.calls import Kept, Tools, calls_in_text, end_call, known
from hotshoe_parsers.declared import Part, Schema, declared, optional, resolved
from hotshoe_parsers.machine import MAX_WORD_CHARS, Machine, Malformed, Reader, Steps
from hotshoe_parsers.python_literals import MAX_DEPTH
from hotshoe_parsers.writer import Writer
from hotshoe_parsers.xml_calls import Tags, as_json, property_of, types_of, value_parts

MARK = "]<]minimax[>["
BEGIN, END = "]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>"
FUNCTION, FUNCTION_END = ']<]minimax[>[<invoke name="', "]<]minimax[>[</invoke>"
NAME_END = '">'
ITEM = "item"
_MARKS = StopAutomaton((MARK,))
#: What no name of a tag has in it.
_NOT_IN_NAMES = "<>/\"'"
#: How a grammar writes the value of an argument, but for its end.
_TAGS = Tags(
    "minimax_m3", BEGIN, END, FUNCTION, NAME_END, FUNCTION_END, f"{MARK}<", (">",), "", gap=""
)
_EMPTY = ((frozenset({"object"}), "{}"), (frozenset({"array"}), "[]"))


def _open(context: ParseContext) -> ResponseParser:
    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str) -> Steps[None]:
            yield from reader.space()
            yield from reader.expect(FUNCTION)
            while True:
                yield from _call(reader, writer, context.tools)
                end_call(reader, writer)
                yield from reader.space()
                if not (yield from reader.literal(FUNCTION)):
                    break
            yield from reader.close(END)
            writer.trim()

        yield from calls_in_text(reader, writer, (BEGIN,), read)

    return Machine(program)


def _call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    name = known((yield from reader.word(NAME_END[0])), tools)
    yield from reader.expect(NAME_END)
    writer.start(name)
    schema, seen = tools[name], set[str]()
    yield from reader.space()
    while not (yield from reader.literal(FUNCTION_END)):
        yield from reader.expect(f"{MARK}<")
        key = yield from _name(reader)
        if key in seen:
            raise Malformed(f"argument {key!r} is given twice")
        value = yield from _value(reader, key, property_of(schema, key), schema, 1)
        writer.arguments(f"{', ' if seen else '{'}{_said(key)}: {value}")
        seen.add(key)
        yield from reader.space()
    writer.arguments("}" if seen else "{}")


def _said(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _name(reader: Reader) -> Steps[str]:
    """Read the name of a tag, and its end."""
    name = yield from reader.word(_NOT_IN_NAMES)
    yield from reader.expect(">")
    if not name:
        raise Malformed("a tag has no name")
    return name


def _value(reader: Reader, key: str, found: object, root: Schema, depth: int) -> Steps[str]:
    """Read what stands behind a tag, with the tag's end; return JSON text.

    Raises:
        Malformed: It is no value of the schema `found`, or is nested deeper than MAX_DEPTH.
    """
    if depth > MAX_DEPTH:
        raise Malformed(f"the arguments are nested deeper than {MAX_DEPTH}")
    text = yield from _text(reader)
    types = types_of(found, root)
    children: list[tuple[str, str]] = []
    while not (yield from reader.literal("/")):
        name = yield from _name(reader)
        of = _child(found, root, name, types)
        children.append((name, (yield from _value(reader, name, of, root, depth + 1))))
        if (yield from _text(reader)).strip():
            raise Malformed(f"{key!r} has a text between its tags")
    if (yield from _name(reader)) != key:
        raise Malformed(f"{key!r} does not end")
    if not children:
        empty = next((json for kind, json in _EMPTY if types == kind and not text.strip()), None)
        return as_json(text, types) if empty is None else empty
    if text.strip():
        raise Malformed(f"{key!r} has a text beside its tags")
    if _listed({name for name, _ in children}, types):
        return f"[{', '.join(value for _, value in children)}]"
    if len(dict(children)) < len(children):
        raise Malformed(f"{key!r} has a member twice")
    return "{" + ", ".join(f"{_said(name)}: {value}" for name, value in children) + "}"


def _listed(names: set[str], types: frozenset[str]) -> bool:
    """Tell whether tags are those of a list."""
    return names == {ITEM} and ("array" in types or "object" not in types)


def _text(reader: Reader) -> Steps[str]:
    """Read up to a mark and the bracket behind it; return what is before."""
    pieces: list[str] = []
    if not (yield from reader.until(_MARKS, pieces.append)):
        raise Malformed("the text ends within the arguments")
    yield from reader.expect("<")
    return "".join(pieces)


def _child(found: object, root: Schema, name: str, types: frozenset[str]) -> object:
    """Return the schema of a member, or of an item; any value where nothing says it."""
    schema: Mapping[str, Any] = resolved(found, root)
    if _listed({name}, types):
        return schema.get("items", {})
    properties = schema.get("properties")
    return properties.get(name, {}) if isinstance(properties, Mapping) else {}


def _calls(tools: Kept) -> CallGrammar:
    tags = [
        CallTag(name, f"{FUNCTION}{name}{NAME_END}", _parameters(name, schema), "\n")
        for name, schema in tools.items()
    ]
    openings = (f"{BEGIN}\n",)
    return CallGrammar(tuple(tags), triggers=(BEGIN,), openings=openings, separator="", closing=END)


def _parameters(tool: str, schema: Schema | None) -> list[Part]:
    """Return the parts of what stands behind a tool's name, with its end."""
    if schema is None:
        return [{"until": FUNCTION_END}]
    parts: list[Part] = []
    for one in declared(tool, schema):
        if set(one.name) & set(_NOT_IN_NAMES) or len(one.name) > MAX_WORD_CHARS:
            raise one.refusal("its name cannot be written in the format minimax_m3")
        own = replace(_TAGS, value_end=f"{MARK}</{one.name}>")
        made = [{"text": f"{MARK}<{one.name}>"}, *value_parts(own, one)]
        parts += made if one.required else [optional(made)]
    return [*parts, {"text": FUNCTION_END}]


FORMAT = ParserFormat(
    "minimax_m3",
    _open,
    markers=(BEGIN, FUNCTION, FUNCTION_END, END),
    template_marks=(MARK, "<tool_call>", "<invoke name="),
    keep_special_tokens=True,
    calls=_calls,
)
