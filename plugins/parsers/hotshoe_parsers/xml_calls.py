"""Formats with tags around every argument, whose values are plain text; one table, one parser.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

The tool's schema says which values are strings; all others must be JSON of a type it allows. In a
string nothing is quoted or escaped, so a grammar keeps it to a list of values, but to no pattern.

Sources: chat templates and model cards of Qwen3-Coder-480B-A35B-Instruct, Seed-OSS-36B-Instruct,
MiniMax-M2, GLM-4.5, Solar-Open2-250B and Step-3; the descriptions of DeepSeek-V3.2's and V4's
encodings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
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


@dataclass(frozen=True, slots=True)
class Tags:
    """How one format writes calls.

    Attributes:
        name: Of the format.
        begin, end: Around a call, or around several; without `end`, `function_end` ends both. That
            one must come: without it, a call that was cut off would seem whole.
        function, name_end: Around the tool's name; both may be missing behind `begin`.
        function_end: Behind the last argument.
        key: Before an argument's name.
        key_end: Between an argument's name and its value; white space may stand between them.
        kinds: Behind `key_end`, of formats that say how a value is written: as text, or as JSON.
        value_end: Behind a value.
        line: What stands between a value and the tags around it, and belongs to these.
        gap: What a grammar writes between tags; a response may have any white space.
        bare: Calls may come without `begin` and `end`.
        several: Several calls may stand between `begin` and `end`.
        inner, inner_end: Around each of several.
        template_marks: See `ParserFormat`.
    """

    name: str
    begin: str
    end: str
    function: str
    name_end: str
    function_end: str
    key: str
    key_end: tuple[str, ...]
    value_end: str
    line: str = ""
    gap: str = "\n"
    kinds: tuple[str, str] = ("", "")
    bare: bool = False
    several: bool = False
    inner: str = ""
    inner_end: str = ""
    template_marks: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The strings that the parser looks for, without mere punctuation."""
        marks = (self.begin, self.inner, self.function, self.function_end, self.key)
        found = (*marks, *self.key_end, *self.kinds, self.value_end, self.inner_end, self.end)
        return tuple(mark for mark in dict.fromkeys(found) if len(mark) > 2)


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


def _open(tags: Tags, context: ParseContext) -> ResponseParser:
    opening = tags.inner or tags.function
    several = tags.several

    def program(reader: Reader, writer: Writer) -> Steps[None]:
        def read(marker: str) -> Steps[None]:
            wrapped = marker == tags.begin
            if wrapped:
                yield from reader.space()
                yield from reader.expect(opening)
            while True:
                if wrapped and tags.inner:
                    yield from reader.space()
                    yield from reader.expect(tags.function)
                yield from _call(reader, writer, tags, context.tools)
                if tags.inner_end:
                    yield from reader.close(tags.inner_end)
                if not several:
                    break
                end_call(reader, writer)
                yield from reader.space()
                if not (yield from reader.literal(opening)):
                    break
            if wrapped and tags.end:
                yield from reader.close(tags.end)
            if several:
                writer.trim()
            else:
                end_call(reader, writer)

        markers = (tags.begin, tags.function) if tags.bare else (tags.begin,)
        yield from calls_in_text(reader, writer, markers, read)

    return Machine(program)


def _call(reader: Reader, writer: Writer, tags: Tags, tools: Tools) -> Steps[None]:
    name = known((yield from reader.word(tags.name_end[:1] or "<\n")).strip(), tools)
    yield from reader.expect(tags.name_end)
    writer.start(name)
    seen: set[str] = set()
    # One line break before a closing tag may belong to it.
    ends = StopAutomaton((tags.value_end, *([tags.line + tags.value_end] if tags.line else ())))
    yield from reader.space()
    while not (yield from _call_ends(reader, tags)):
        key = yield from reader.word(tags.key_end[0][0])
        if key in seen:
            raise Malformed(f"argument {key!r} is given twice")
        writer.arguments(f"{', ' if seen else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        seen.add(key)
        for number, part in enumerate(tags.key_end):
            if number:
                yield from reader.space()
            yield from reader.expect(part)
        types = types_of(property_of(tools[name], key), tools[name])
        types = yield from _kind(reader, tags, types)
        yield from reader.literal(tags.line)
        yield from read_value(reader, writer, ends, types)
        yield from reader.space()
    writer.arguments("}" if seen else "{}")


def _kind(reader: Reader, tags: Tags, types: frozenset[str]) -> Steps[frozenset[str]]:
    """Read how a value is written, if the format says it, and return what types that may be."""
    text, other = tags.kinds
    if not text:
        return types
    if (yield from reader.literal(text)):
        return _STRING
    yield from reader.expect(other)
    return (types - _STRING) or (ANY_TYPE - _STRING)


def _call_ends(reader: Reader, tags: Tags) -> Steps[bool]:
    """Read the end of a call, or what opens another argument; return which of them."""
    if (yield from reader.literal(tags.function_end)):
        return True
    yield from reader.expect(tags.key)
    return False


def read_value(
    reader: Reader, writer: Writer, ends: StopAutomaton, types: frozenset[str]
) -> Steps[None]:
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
    if not (yield from reader.until(ends, take)):
        raise Malformed("the text ends within the arguments")
    writer.arguments('"' if types == _STRING else as_json("".join(pieces), types))


def as_json(text: str, types: frozenset[str]) -> str:
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


def property_of(schema: Mapping[str, Any], key: str) -> object:
    """Return the schema of one argument; a string where it is not described."""
    properties = schema.get("properties")
    return properties.get(key, {"type": "string"}) if isinstance(properties, Mapping) else True


def types_of(found: object, root: Schema, depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema allows, as far as its outermost keywords say."""
    schema = resolved(found, root)
    if depth > _MAX_CHOICE_DEPTH:
        return ANY_TYPE
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return frozenset().union(*(types_of(c, root, depth + 1) for c in schema[keyword]))
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset().union(*(_TYPES.get(type(value), ANY_TYPE) for value in values))
    return ANY_TYPE


def _calls(tags: Tags, tools: Kept) -> CallGrammar:
    gap, found = tags.gap, list[CallTag]()
    for name, schema in tools.items():
        begin = f"{tags.inner}{tags.function}{name}{tags.name_end}{gap}"
        parts = _parameters(tags, name, schema)
        if tags.several:
            # The gap belongs to the call: what may follow it must not begin alike.
            found.append(CallTag(name, begin, parts, tags.inner_end + gap))
            continue
        opening = tags.begin + (gap if tags.function else "")
        found.append(CallTag(name, opening + begin, parts, gap + tags.end if tags.end else ""))
        if tags.bare:
            found.append(CallTag(name, begin, parts, ""))
    if tags.several:
        return CallGrammar(
            tuple(found),
            triggers=(tags.begin,),
            openings=(tags.begin + gap,),
            separator="",
            closing=tags.end,
        )
    triggers = (tags.begin, tags.function) if tags.bare else (tags.begin,)
    return CallGrammar(tuple(found), triggers=triggers, separator=gap)


def _parameters(tags: Tags, tool: str, schema: Schema | None) -> list[Part]:
    """Return the parts of what stands behind a function's name, with its end."""
    if schema is None:
        return [{"until": tags.function_end}]
    parts: list[Part] = []
    for one in declared(tool, schema):
        if tags.key_end[0][0] in one.name or len(one.name) > MAX_WORD_CHARS:
            raise one.refusal(f"its name cannot be written in the format {tags.name}")
        key = f"{tags.key}{one.name}{tags.gap.join(tags.key_end)}{tags.line}"
        written = [{"text": key}, *value_parts(tags, one), *_text(tags.gap)]
        parts += written if one.required else [optional(written)]
    return [*parts, {"text": tags.function_end}]


def _text(text: str) -> list[Part]:
    return [{"text": text}] if text else []


def value_parts(tags: Tags, argument: Argument) -> list[Part]:
    """Return the parts of a value, with its end.

    Raises:
        RequestError: It may be text that a keyword rules out.
    """
    schema = argument.schema
    types = types_of(schema, schema)
    if types.isdisjoint(_STRING):
        value = [*argument.as_json(), {"text": tags.line + tags.value_end}]
        return [*_text(tags.kinds[1]), *value]
    if types <= unconstrained(schema, schema):
        return [*_text(tags.kinds[0]), {"until": tags.value_end}]
    spelt = [_spelt(tags, value, types) for value in _values(schema, schema)]
    if not spelt or not all(spelt):
        keyword = min(assertions(schema) - {"type"}, default="type")
        raise argument.refusal(
            f"in the format {tags.name}, JSON Schema keyword {keyword!r} cannot be kept in text"
        )
    choices = [[{"text": f"{x}{tags.line}{tags.value_end}"}] for texts in spelt for x in texts]
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


def _spelt(tags: Tags, value: Any, types: frozenset[str]) -> list[str]:
    """Return how a value is written; nothing where it would be read as another."""
    is_text = isinstance(value, str)
    kind = tags.kinds[not is_text]
    plain = value if is_text else json.dumps(value, ensure_ascii=False)
    if kind:
        types = _STRING if is_text else types - _STRING
    read = plain if types == _STRING else json.loads(as_json(plain, types))
    if json.dumps(read) != json.dumps(value) or tags.value_end in plain:
        return []
    names = [name for name, said in _PYTHON_NAMES.items() if said == plain]
    return [kind + x for x in ([plain] if is_text else [plain, *names])]


DSML = "｜DSML｜"
QWEN3 = Tags(
    "qwen3_xml",
    begin="<tool_call>",
    end="</tool_call>",
    function="<function=",
    name_end=">",
    function_end="</function>",
    key="<parameter=",
    key_end=(">",),
    value_end="</parameter>",
    line="\n",
    bare=True,
    template_marks=("<tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"),
)
_V32 = Tags(
    "deepseek_v32",
    begin=f"<{DSML}function_calls>",
    end=f"</{DSML}function_calls>",
    function=f'<{DSML}invoke name="',
    name_end='">',
    function_end=f"</{DSML}invoke>",
    key=f'<{DSML}parameter name="',
    key_end=('"',),
    kinds=(' string="true">', ' string="false">'),
    value_end=f"</{DSML}parameter>",
    several=True,
    template_marks=("function_calls>", "invoke name=", DSML),
)
TABLE = (
    QWEN3,
    replace(
        QWEN3,
        name="seed_oss",
        begin="<seed:tool_call>",
        end="</seed:tool_call>",
        bare=False,
        template_marks=("<seed:tool_call>", "<function=", "<parameter=", "</parameter>"),
    ),
    Tags(
        "minimax_m2",
        begin="<minimax:tool_call>",
        end="</minimax:tool_call>",
        function='<invoke name="',
        name_end='">',
        function_end="</invoke>",
        key='<parameter name="',
        key_end=('">',),
        value_end="</parameter>",
        several=True,
        template_marks=("minimax:tool_call", "<invoke name=", "</invoke>"),
    ),
    Tags(
        "glm45",
        begin="<tool_call>",
        end="",
        function="",
        name_end="",
        function_end="</tool_call>",
        key="<arg_key>",
        key_end=("</arg_key>", "<arg_value>"),
        value_end="</arg_value>",
        template_marks=("<tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    Tags(
        "solar_open2",
        begin="<|tool_call:start|>",
        end="",
        function="",
        name_end="",
        function_end="<|tool_call:end|>",
        key="<|tool_arg:start|>",
        key_end=("<|tool_arg:value|>",),
        value_end="<|tool_arg:end|>",
        template_marks=("<|tool_call:start|>", "<|tool_arg:start|>"),
    ),
    Tags(
        "step3",
        begin="<｜tool_calls_begin｜>",
        end="<｜tool_calls_end｜>",
        inner="<｜tool_call_begin｜>function<｜tool_sep｜>",
        inner_end="<｜tool_call_end｜>",
        function='<steptml:invoke name="',
        name_end='">',
        function_end="</steptml:invoke>",
        key='<steptml:parameter name="',
        key_end=('">',),
        value_end="</steptml:parameter>",
        gap="",
        several=True,
        template_marks=("<｜tool_calls_begin｜>", "steptml:invoke"),
    ),
    _V32,
    replace(
        _V32,
        name="deepseek_v4",
        begin=f"<{DSML}tool_calls>",
        end=f"</{DSML}tool_calls>",
        template_marks=(f"{DSML}tool_calls>", "invoke name=", DSML),
    ),
)
FORMATS = {
    tags.name: ParserFormat(
        tags.name,
        partial(_open, tags),
        markers=tags.markers,
        template_marks=tags.template_marks,
        keep_special_tokens=True,  # which some markers are in some tokenizers
        calls=partial(_calls, tags),
    )
    for tags in TABLE
}
QWEN3_XML, SEED_OSS, MINIMAX_M2, GLM45, SOLAR, STEP3, DEEPSEEK_V32, DEEPSEEK_V4 = FORMATS.values()
