"""Reads Python literals and writes them as JSON while they come. Nothing is evaluated.

Strings, numbers, True, False, None, lists and dictionaries with string keys; also JSON's names of
the three constants, which models mix in. Everything else is malformed.

Source: Python Language Reference, section 2.4, Literals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.machine import MAX_WORD_CHARS, Malformed, Reader, Steps, Take

MAX_DEPTH = 64

_CONSTANTS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_NUMBER = frozenset("0123456789+-.eE")
_JSON_NUMBER = re.compile(r"(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789")
_QUOTES = ('"', "'")
_BACKSLASH = "\\"
#: Closing quotes -> what to look for inside such a string.
_IN_STRING = {
    **{quote: StopAutomaton((quote, _BACKSLASH, "\n")) for quote in _QUOTES},
    **{quote * 3: StopAutomaton((quote * 3, _BACKSLASH)) for quote in _QUOTES},
}
_ESCAPES = dict(zip("\\'\"abfnrtv\n", ["\\", "'", '"', *"\a\b\f\n\r\t\v", ""], strict=True))
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}
_OCTAL = "01234567"


def literal(reader: Reader, take: Take, depth: int = 0) -> Steps[None]:
    """Read one literal; `take` gets JSON text.

    Raises:
        Malformed: What comes is none, or is nested deeper than MAX_DEPTH.
    """
    char = yield from reader.peek()
    if depth > MAX_DEPTH:
        raise Malformed(f"the arguments are nested deeper than {MAX_DEPTH}")
    if char in _QUOTES:
        yield from string(reader, take)
    elif char == "[":
        yield from _list(reader, take, depth)
    elif char == "{":
        yield from _dictionary(reader, take, depth)
    elif char in _NUMBER - _WORD or char.isdecimal():
        take(_number((yield from _run(reader, _NUMBER, None))))
    else:
        word = yield from _run(reader, _WORD, MAX_WORD_CHARS)
        if word not in _CONSTANTS:
            raise Malformed(f"{word or char!r} is no literal")
        take(_CONSTANTS[word])


def _run(reader: Reader, chars: frozenset[str], limit: int | None) -> Steps[str]:
    """Read a run of certain characters, which may have a limit."""
    found: list[str] = []
    while (yield from reader.peek()) in chars:
        if len(found) == limit:
            raise Malformed("a name is too long")
        found.append((yield from reader.char()))
    return "".join(found)


def _number(text: str) -> str:
    """Return a Python number as JSON, digit by digit: no value is rounded."""
    sign, digits = text[: text.startswith("-")], text.removeprefix("-")
    whole, point, fraction = digits.partition(".")
    if point and (whole or fraction[:1].isdecimal()):
        fraction = fraction if fraction[:1].isdecimal() else f"0{fraction}"
        digits = f"{whole or 0}.{fraction}"
    if not _JSON_NUMBER.fullmatch(digits):
        raise Malformed(f"{text[:MAX_WORD_CHARS]!r} is no number")
    return sign + digits


def string(reader: Reader, take: Take) -> Steps[None]:
    """Read a string literal without a prefix."""
    quote = yield from reader.char()
    close = quote
    if (yield from reader.literal(quote * 2)):
        close = quote * 3

    def escape(text: str) -> None:
        take(json.dumps(text, ensure_ascii=False)[1:-1])

    take('"')
    while (found := (yield from reader.until(_IN_STRING[close], escape))) != close:
        if found != _BACKSLASH:
            raise Malformed("a string does not end")
        yield from _escape(reader, take)
    take('"')


def _escape(reader: Reader, take: Take) -> Steps[None]:
    """Read what follows a backslash; an unknown escape stands for itself, as in Python."""
    char = yield from reader.char()
    if char in _ESCAPES:
        value = _ESCAPES[char]
    elif char in _HEX_LENGTHS:
        value = yield from _code(reader, "", _HEX_LENGTHS[char], 16)
    elif char and char in _OCTAL:
        value = yield from _code(reader, char, 3, 8)
    elif char in ("", "N"):
        raise Malformed("an escape in a string is unfinished or unknown")
    else:
        value = f"\\{char}"
    take(json.dumps(value)[1:-1])


def _code(reader: Reader, digits: str, length: int, base: int) -> Steps[str]:
    """Read the rest of a character's code: octal codes may be shorter."""
    allowed = _OCTAL if base == 8 else "0123456789abcdefABCDEF"
    while len(digits) < length and (char := (yield from reader.peek())) and char in allowed:
        digits += yield from reader.char()
    if (base == 16 and len(digits) < length) or int(digits, base) > 0x10FFFF:
        raise Malformed("an escape in a string is no character")
    return chr(int(digits, base))


def _list(reader: Reader, take: Take, depth: int) -> Steps[None]:
    def item() -> Steps[None]:
        yield from literal(reader, take, depth + 1)

    yield from reader.char()
    take("[")
    yield from items(reader, "]", item, take)
    take("]")


def _dictionary(reader: Reader, take: Take, depth: int) -> Steps[None]:
    def item() -> Steps[None]:
        if (yield from reader.peek()) not in _QUOTES:
            raise Malformed("a key of a dictionary is no string")
        yield from string(reader, take)
        yield from reader.space()
        yield from reader.expect(":")
        take(": ")
        yield from reader.space()
        yield from literal(reader, take, depth + 1)

    yield from reader.char()
    take("{")
    yield from items(reader, "}", item, take)
    take("}")


def items(reader: Reader, close: str, item: Callable[[], Steps[None]], take: Take) -> Steps[None]:
    """Read items between commas, of which the last may be spare, up to and with `close`."""
    yield from reader.space()
    between = ""
    while not (yield from reader.literal(close)):
        take(between)
        yield from item()
        between = ", "
        yield from reader.space()
        if (yield from reader.peek()) != close:
            yield from reader.expect(",")
            yield from reader.space()
