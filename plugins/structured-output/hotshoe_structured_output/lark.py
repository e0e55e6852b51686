"""Writes grammars in llguidance's Lark dialect. Text in, text out; nothing is compiled here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hotshoe_structured_output.schema import Schema, refusal
from hotshoe_structured_output.tags import StructuralTag, Structure

#: Between tokens of JSON; bounded, so that a model cannot go on with blanks for ever.
WHITESPACE = r"[ \t\n\r]{1,40}"
#: Each character has one spelling only, so that property names are equal where they look equal.
ESCAPES = '"\\bfnrt'
#: Without it, text that must come next could be cut into tokens in one way only.
_HEADER = '%llguidance {"no_forcing": true}\n'
#: Rules that refer to each other are followed by recursion: 3,000 exhaust a thread's stack.
MAX_RULES = 1000
#: Time grows exponentially with them: 8 take 40 ms, 20 take 7 s.
MAX_INTERSECTIONS = 8
_FREE_TEXT = r"TEXT: /(.|\n)*/"


def json_schema(schema: Schema) -> str:
    """Return a grammar of JSON texts."""
    return f"{_HEADER}start: {_json(schema)}\n"


def regex(pattern: str) -> str:
    """Return a grammar of texts that match a regular expression, escaped for Lark, as a whole."""
    return f"{_HEADER}start: /{pattern}/\n"


def grammar(text: str) -> str:
    """Return a grammar that is written in Lark already, with our options for its header.

    Raises:
        RequestError: It sets options itself, embeds what is checked only elsewhere, or is so large
            that the library would exhaust its stack or compile for hours.
    """
    body = re.sub(r"\A\s*%llguidance \{\}\n", "", text)
    # Literals count as well: what is one, only the library knows.
    for name in ("%llguidance", "%json", "%lark"):
        if name in body:
            raise refusal(f"a grammar may not contain {name}")
    if sum(":" in line for line in body.splitlines()) > MAX_RULES:
        raise refusal(f"a grammar may have {MAX_RULES} rules")
    if body.count("&") > MAX_INTERSECTIONS:
        raise refusal(f"a grammar may have {MAX_INTERSECTIONS} intersections (&)")
    return _HEADER + body


def choice(texts: Iterable[str]) -> str:
    """Return a grammar of these texts."""
    return f"{_HEADER}start: {' | '.join(map(_quoted, texts))}\n"


def structural_tag(tag: StructuralTag, special: Mapping[str, int]) -> str:
    """Return a grammar of free text with sections.

    Args:
        tag: The sections.
        special: Ids of special tokens by content; the marks of sections may hold them.

    Raises:
        RequestError: A trigger is neither plain text nor one special token.
    """
    literal = _Literals(special)
    rules = [_FREE_TEXT, "tail: TEXT", f"more: {_repetition(tag, literal)}"]
    for i, structure in enumerate(tag.structures):
        rules.append(f"body_{i}: {_json(structure.schema)} {literal(structure.end)}")
    begun = (f"{literal(s.begin)} body_{i}" for i, s in enumerate(tag.structures))
    rules += [f"one: {' | '.join(begun)}", f"section: {literal(tag.opening)} one more"]
    announced = []
    only_section = tag.at_least_one and tag.stop_after_first
    for k, trigger in enumerate(() if only_section else tag.triggers):
        rests = [
            f"{literal((tag.opening + s.begin)[len(trigger) :])} body_{i}"
            for i, s in enumerate(tag.structures)
            if _trigger_of(tag, s) == trigger
        ]
        if rests:
            rules.append(literal.trigger(f"trigger_{k}", trigger))
            rules.append(f"announced_{k}: trigger_{k} ({' | '.join(rests)}) more")
            announced.append(f"announced_{k}")
    return f"{_HEADER}{_start(tag, ' | '.join(announced))}\n" + "\n".join(rules) + "\n"


def _start(tag: StructuralTag, announced: str) -> str:
    first = "section" if tag.at_least_one else ""
    if tag.stop_after_first:
        return f"start: {first or f'{announced} | tail'}"
    return f"start: {first} ({announced})* tail"


def _repetition(tag: StructuralTag, literal: _Literals) -> str:
    closing = literal(tag.closing)
    if tag.separator is None:
        return closing
    return f"({literal(tag.separator)} one)* {closing}"


def _trigger_of(tag: StructuralTag, structure: Structure) -> str:
    return next(t for t in tag.triggers if (tag.opening + structure.begin).startswith(t))


class _Literals:
    """Writes text in which special tokens may occur."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        names = sorted(special, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def __call__(self, text: str) -> str:
        parts, end = [], 0
        for match in self._split.finditer(text):
            parts.append(text[end : match.start()])
            parts.append(match[0])
            end = match.end()
        parts.append(text[end:])
        found = (self._one(part) for part in parts if part)
        return " ".join(found) or '""'

    def trigger(self, rule: str, text: str) -> str:
        """Return the rule of free text that ends with a trigger."""
        if text in self._special:
            return f"{rule}: TEXT {self._one(text)}"
        if self._split.search(text):
            raise refusal(f"trigger {text!r} must be plain text, or one special token alone")
        return f"{rule}[lazy]: TEXT {_quoted(text)}"

    def _one(self, part: str) -> str:
        return f"<[{self._special[part]}]>" if part in self._special else _quoted(part)


def _json(schema: Schema) -> str:
    options: dict[str, Any] = {"whitespace_pattern": WHITESPACE, "json_allowed_escapes": ESCAPES}
    body = {} if schema is True else schema
    assert isinstance(body, Mapping), "the schema false was refused before"
    return "%json " + json.dumps({"x-guidance": options, **body}, ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
