"""Programs that several formats share: content with calls in it, and calls written as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotshoe.text.parsing import CallTag
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.json_object import JsonObject
from hotshoe_parsers.machine import MAX_WORD_CHARS, Malformed, Reader, Steps
from hotshoe_parsers.writer import Writer

Tools = Mapping[str, Mapping[str, Any]]
#: Tools with the schema that a grammar keeps their arguments to, if it does.
Kept = Mapping[str, Mapping[str, Any] | None]

#: Key of a call -> what it says. Formats differ in the name of the arguments.
_KEYS = {
    "name": "name",
    "tool_name": "name",
    "arguments": "arguments",
    "parameters": "arguments",
    "id": "id",
    "tool_call_id": "id",
    "type": "type",
}


def calls_in_text(
    reader: Reader,
    writer: Writer,
    markers: Sequence[str],
    read: Callable[[str], Steps[None]],
) -> Steps[None]:
    """Read content to its end, and calls wherever a marker announces some.

    Args:
        reader: Where the text comes from.
        writer: Where the events go.
        markers: What announces calls.
        read: Reads what follows the marker it is given.
    """
    automaton = StopAutomaton(markers)
    while marker := (yield from reader.until(automaton, writer.content)):
        reader.mark(marker)
        yield from attempt(reader, writer, read(marker))


def bracketed_calls(
    reader: Reader, writer: Writer, marks: tuple[str, str, str], one: Callable[[], Steps[None]]
) -> Steps[None]:
    """Read content to its end, and calls wherever a pair of marks holds some.

    Args:
        reader: Where the text comes from.
        writer: Where the events go.
        marks: Before all calls, before each of them, and behind the last.
        one: Reads what follows the mark before a call.
    """
    begin, call, end = marks

    def read(marker: str) -> Steps[None]:
        yield from reader.space()
        yield from reader.expect(call)
        while True:
            yield from one()
            yield from reader.space()
            if not (yield from reader.literal(call)):
                break
        yield from reader.close(end)
        writer.trim()

    yield from calls_in_text(reader, writer, (begin,), read)


def leading_calls(
    reader: Reader, writer: Writer, first: str, read: Callable[[], Steps[None]]
) -> Steps[None]:
    """Read calls that no marker announces: only where a response begins with `first`."""
    reader.mark()
    yield from reader.space()
    if (yield from reader.peek()) == first:
        yield from attempt(reader, writer, read(), announced=False)
    else:
        writer.content(reader.since_mark())
        reader.forget()


def attempt(
    reader: Reader, writer: Writer, steps: Steps[None], announced: bool = True
) -> Steps[None]:
    """Run a part of a program; if it is malformed, give it up from the reader's mark on.

    What neither a marker nor the name of a tool has announced is content, without a warning.
    """
    try:
        yield from steps
    except Malformed as error:
        if announced or writer.in_call:
            writer.malformed(reader.since_mark(), str(error))
        else:
            writer.content(reader.since_mark())
    reader.forget()


def known(name: str, tools: Tools) -> str:
    """Return the name of a tool.

    Raises:
        Malformed: The request offers no such tool.
    """
    if name not in tools:
        raise Malformed(f"the request offers no tool {name!r}")
    return name


def end_call(reader: Reader, writer: Writer) -> None:
    """End a call; what is malformed after it begins anew here."""
    writer.end()
    reader.mark()


def arguments(reader: Reader, writer: Writer) -> Steps[None]:
    """Read a JSON object as the arguments of the open call."""
    yield from reader.scan(JsonObject(), writer.arguments)


def call_list(reader: Reader, writer: Writer, read: Callable[[], Steps[None]]) -> Steps[None]:
    """Read at least one call between brackets; `read` reads one and leaves it open."""
    yield from reader.expect("[")
    while True:
        yield from reader.space()
        yield from read()
        yield from reader.space()
        if (yield from reader.peek()) in ("", "]"):  # an end may be missing where all text ends
            break
        yield from reader.expect(",")
        end_call(reader, writer)
    yield from reader.literal("]")
    end_call(reader, writer)


def json_call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    """Read `{"name": ..., "arguments": {...}}`, in any order, and leave the call open."""
    name, early = "", list[str]()
    seen: set[str] = set()
    yield from reader.expect("{")
    while True:
        yield from reader.space()
        said = yield from _key(reader, seen)
        if said != "arguments":
            value = yield from _string(reader)
            name = known(value, tools) if said == "name" else name
        elif name:
            writer.start(name)
            yield from arguments(reader, writer)
        else:
            yield from reader.scan(JsonObject(), early.append)
        yield from reader.space()
        if (yield from reader.literal("}")):
            break
        yield from reader.expect(",")
    for needed in ("name", "arguments"):
        if needed not in seen:
            raise Malformed(f"the call has no {needed}")
    if early:
        writer.start(name)
        writer.arguments("".join(early))


def keyed_call(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    """Read `{"NAME": {...}}`, arguments by the name of the tool, and leave the call open."""
    yield from reader.expect("{")
    yield from reader.space()
    name = known((yield from _string(reader)), tools)
    yield from reader.space()
    yield from reader.expect(":")
    yield from reader.space()
    writer.start(name)
    yield from arguments(reader, writer)
    yield from reader.space()
    yield from reader.expect("}")


def _key(reader: Reader, seen: set[str]) -> Steps[str]:
    """Read a key and the colon after it; return what the key says."""
    key = yield from _string(reader)
    said = _KEYS.get(key, "")
    if not said or said in seen:
        raise Malformed(f"the call may not have {'two fields' if said else 'a field'} {key!r}")
    seen.add(said)
    yield from reader.space()
    yield from reader.expect(":")
    yield from reader.space()
    return said


def _string(reader: Reader) -> Steps[str]:
    """Read a short JSON string and return its value."""
    yield from reader.expect('"')
    raw = ['"']
    escaped = False
    while True:
        char = yield from reader.peek()
        if not char or len(raw) > MAX_WORD_CHARS:
            raise Malformed("a name does not end")
        raw.append((yield from reader.char()))
        if char == '"' and not escaped:
            break
        escaped = char == "\\" and not escaped
    try:
        value: str = json.loads("".join(raw))
    except ValueError as error:
        raise Malformed("a name is not a JSON string") from error
    return value


def json_tags(
    tools: Kept,
    before: str = "",
    after: str = "",
    key: str = "arguments",
    name_key: str | None = "name",
) -> tuple[CallTag, ...]:
    """Describe calls written as JSON objects, between `before` and `after`; without `name_key` an
    object has the tool's name for its only key."""
    tags = []
    for name, schema in tools.items():
        said = json.dumps(name, ensure_ascii=False)
        opening = f"{{{said}: " if name_key is None else f'{{"{name_key}": {said}, "{key}": '
        tags.append(CallTag(name, before + opening, schema, f"}}{after}"))
    return tuple(tags)
