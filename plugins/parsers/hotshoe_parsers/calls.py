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

_NAME_KEYS = ("name",)
_ARGUMENT_KEYS = ("arguments", "parameters")
_IGNORED_KEYS = ("id", "type")


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


def json_calls(reader: Reader, writer: Writer, tools: Tools) -> Steps[None]:
    """Read an array of at least one call."""
    yield from reader.expect("[")
    while True:
        yield from reader.space()
        yield from json_call(reader, writer, tools)
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
        key = yield from _key(reader, seen)
        if key in _NAME_KEYS:
            name = known((yield from _string(reader)), tools)
        elif key in _IGNORED_KEYS:
            yield from _string(reader)
        elif name:
            writer.start(name)
            yield from arguments(reader, writer)
        else:
            yield from reader.scan(JsonObject(), early.append)
        yield from reader.space()
        if (yield from reader.literal("}")):
            break
        yield from reader.expect(",")
    if not name or seen.isdisjoint(_ARGUMENT_KEYS):
        raise Malformed("the call has no arguments" if name else "the call has no name")
    if early:
        writer.start(name)
        writer.arguments("".join(early))


def _key(reader: Reader, seen: set[str]) -> Steps[str]:
    """Read a key and the colon after it."""
    key = yield from _string(reader)
    kind = "arguments" if key in _ARGUMENT_KEYS else key
    if key not in (*_NAME_KEYS, *_ARGUMENT_KEYS, *_IGNORED_KEYS) or kind in seen:
        raise Malformed(f"the call has {'two fields' if kind in seen else 'a field'} {key!r}")
    seen.add(kind)
    yield from reader.space()
    yield from reader.expect(":")
    yield from reader.space()
    return key


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
    tools: Tools, before: str = "", after: str = "", key: str = "arguments"
) -> tuple[CallTag, ...]:
    """Describe calls written as JSON objects, between `before` and `after`."""
    return tuple(
        CallTag(
            name,
            f'{before}{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": ',
            schema,
            f"}}{after}",
        )
        for name, schema in tools.items()
    )
