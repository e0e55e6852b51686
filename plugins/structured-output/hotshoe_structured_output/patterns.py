r"""Writes patterns of a JSON Schema so that llguidance reads them as the standard does.

The library spells a pattern's texts in JSON. A class that holds control characters, but not the
quote or the backslash, then lets `\"` and `\\` through all the same, such as `[^"]`. Parted in two
classes, of control characters and others, it does not. It also reads nested classes and set
operations, where the standard has plain characters. Source: ECMA-262, patterns.
"""

from __future__ import annotations

import re

from hotshoe_structured_output.schema import refusal

_CLASS = re.compile(
    r"(?P<escape>\\[pP]\{[^}]*\}|\\[sS]|\\.|\\\Z)|\[(?P<body>\^?(?:\\.|[^\]\\])*)\]", re.DOTALL
)
_CONTROLS = "".join(map(chr, range(0x20)))
#: Those that have an escape of one character in JSON; others cannot be generated.
_ESCAPED = r"[\x08\t\n\x0c\r]"
_OPERATORS = re.compile(r"(\\.)|(\[|&(?=&)|~(?=~)|\|(?=\|))", re.DOTALL)
#: Two hyphens are an operator, too. In a range, the hyphen that is one of its ends is escaped.
_RANGE = re.compile(r"(\\.|[^\\])-(\\.|[^\\])", re.DOTALL)


def rewritten(pattern: str) -> str:
    """Return a pattern that llguidance reads as the standard reads this one.

    Raises:
        RequestError: It has an empty class, or ends in a backslash.
    """
    return _CLASS.sub(_one, pattern)


def _one(match: re.Match[str]) -> str:
    escape, body = match["escape"], match["body"]
    if escape is not None:
        if escape == "\\":
            raise refusal("a pattern ends in a backslash")
        return _parted(f"[{escape}]") if escape[1] in "pPs" else escape
    if body in ("", "^"):
        raise refusal(f"[{body}] in a pattern is not supported")
    found = _RANGE.sub(lambda m: "-".join(r"\-" if end == "-" else end for end in m.groups()), body)
    found = _OPERATORS.sub(lambda m: m[1] or "\\" + m[2], found)
    return _parted(f"[{found}]")


def _parted(cls: str) -> str:
    """Part a class in two where the library would let escapes through."""
    try:
        test = re.compile(cls, re.ASCII)
    except re.error:  # what only the library knows, such as names of scripts
        needed = True
    else:
        whole = test.match('"') and test.match("\\")
        needed = not whole and any(map(test.match, _CONTROLS))
    return rf"(?:[{cls}&&[^\x00-\x1f]]|[{cls}&&{_ESCAPED}])" if needed else cls
