"""Writes grammars in llguidance's Lark dialect. Text in, text out; nothing is compiled here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hotshoe_structured_output.rewriting import for_llguidance
from hotshoe_structured_output.schema import Schema, refusal
from hotshoe_structured_output.tags import Part, Parts, StructuralTag

#: Between tokens of JSON, unless a specification says more.
MAX_BLANKS = 1
#: Each character has one spelling only, so that property names are equal where they look equal.
ESCAPES = '"\\bfnrt'
#: Without it, text that must come next could be cut into tokens in one way only.
_HEADER = '%llguidance {"no_forcing": true}\n'
_ANY_TEXT = r"/(.|\n)*/"
#: Rules that refer to each other are followed by recursion: 3,000 exhaust a thread's stack.
MAX_RULES = 1000
#: Time grows exponentially with them: 8 take 40 ms, 20 take 7 s.
MAX_INTERSECTIONS = 8


def json_schema(schema: Schema, max_blanks: int = MAX_BLANKS) -> str:
    """Return a grammar of JSON texts, with at most so many blanks in one place."""
    return f"{_HEADER}start: {_json(schema, max_blanks)}\n"


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
    """Return a grammar of these texts: one terminal, as alternatives of a rule are limited."""
    return f"{_HEADER}start: CHOICE\nCHOICE: {' | '.join(map(_quoted, texts))}\n"


def structural_tag(
    tag: StructuralTag,
    special: Mapping[str, int],
    escape: Callable[[str], str],
    max_blanks: int = MAX_BLANKS,
) -> str:
    """Return a grammar of free text with sections.

    Args:
        tag: The sections.
        special: Ids of special tokens by content; the marks of sections may hold them.
        escape: Writes a regular expression for Lark.
        max_blanks: In one place of JSON.

    Raises:
        RequestError: What ends free text is neither plain nor begins with a special token.
    """
    literal = _Literals(special)
    parts = _Parts(literal, escape, max_blanks)
    rules = [_free_text(tag, special), "tail: free TEXT", f"more: {_repetition(tag, literal)}"]
    marked = _either(f"TEXT {literal(mark)}" for mark in tag.marks)
    rules.append(f"free: {marked}*" if tag.marks else 'free: ""')
    for i, structure in enumerate(tag.structures):
        rules.append(f"body_{i}: {parts(structure.parts)} {literal(structure.end)}")
    begun = (f"{literal(s.begin)} body_{i}" for i, s in enumerate(tag.structures))
    rules.append(f"one: {' | '.join(begun)}")
    rules.append(f"section: {_either(map(literal, tag.openings))} one more")
    if tag.otherwise is not None:
        rules.append(f"otherwise: {_json(tag.otherwise, max_blanks)}")
    announced = []
    only_section = tag.at_least_one and tag.stop_after_first
    for k, trigger in enumerate(() if only_section else tag.leading + tag.triggers):
        rests = [f"{literal(rest)} body_{i}" for rest, i in tag.announced_by(trigger)]
        if rests:
            leads = k < len(tag.leading)
            rule = f"lead_{k}: {literal(trigger)}" if leads else literal.until(f"lead_{k}", trigger)
            rules += [rule, f"announced_{k}: free lead_{k} {_either(rests)} more"]
            announced.append(f"announced_{k}")
    if tag.preface:
        begin, end = tag.preface
        rules += [literal.until("end", end), f"preface: ({literal(begin)} end)*"]
    rules += parts.rules
    return f"{_HEADER}start: {_start(tag, _either(announced))}\n" + "\n".join(rules) + "\n"


def _start(tag: StructuralTag, announced: str) -> str:
    if tag.otherwise is not None:
        return "section | otherwise"
    first = ("preface section" if tag.preface else "section") if tag.at_least_one else ""
    if tag.stop_after_first:
        return first or f"{announced} | tail"
    return f"{first} {announced}* tail"


def _free_text(tag: StructuralTag, special: Mapping[str, int]) -> str:
    """Return the rule of text between marks: a mark that is a token is not spelled out in it."""
    marks = (*tag.triggers, *tag.marks, *tag.preface)
    tokens = [token for token in special if any(token in mark for mark in marks)]
    rule = f"TEXT: {_ANY_TEXT}"
    if tokens:
        rule += rf" & ~/(.|\n)*{_plain(tokens)}(.|\n)*/"
    if tag.leading:
        rule += rf" & ~/\s*{_plain(lead.strip() for lead in tag.leading)}(.|\n)*/"
    return rule


def _plain(texts: Iterable[str]) -> str:
    """Return a regular expression of these texts."""
    escaped = (re.escape(t).replace("/", r"\/").replace("\n", "n") for t in texts)
    return f"({'|'.join(escaped)})"


def _either(texts: Iterable[str]) -> str:
    return f"({' | '.join(texts)})"


def _repetition(tag: StructuralTag, literal: _Literals) -> str:
    closing = literal(tag.closing)
    if tag.separator is None:
        return closing
    return f"({literal(tag.separator)} one)* {closing}"


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

    def until(self, rule: str, end: str, text: str = "TEXT") -> str:
        """Return the rule of free text up to an end, and of the end."""
        special = self._split.search(end)
        if special is None:
            return f"{rule}[lazy]: {text} {_quoted(end)}"
        if special.start():
            raise refusal(f"{end!r} must be plain text, or begin with a special token")
        return f"{rule}: {text} {self(end)}"

    def _one(self, part: str) -> str:
        return f"<[{self._special[part]}]>" if part in self._special else _quoted(part)


class _Parts:
    """Writes parts of sections; equal ones share a rule, of those in `rules`."""

    def __init__(self, literal: _Literals, escape: Callable[[str], str], max_blanks: int) -> None:
        self._max_blanks = max_blanks
        self._literal = literal
        self._escape = escape
        self._names: dict[str, str] = {}
        self.rules: list[str] = []

    def __call__(self, parts: Parts) -> str:
        return " ".join(map(self._one, parts)) or '""'

    def _one(self, part: Part) -> str:
        if part.kind == "text":
            return self._literal(part.value)
        if part.kind == "either":
            return _either(map(self, part.value))
        key = json.dumps([part.kind, part.value])
        if key not in self._names:
            self._names[key] = name = f"part_{len(self._names)}"
            self.rules += self._leaf(name, part)
        return self._names[key]

    def _leaf(self, name: str, part: Part) -> list[str]:
        """Return the rules of a part that has no others."""
        if part.kind == "schema":
            return [f"{name}: {_json(part.value, self._max_blanks)}"]
        if part.kind == "regex":
            return [f"{name}: /{self._escape(part.value)}/"]
        text = rf"{name.upper()}: {_ANY_TEXT} & ~/(.|\n)*{_plain([part.value])}(.|\n)*/"
        return [text, self._literal.until(name, part.value, name.upper())]


def _json(schema: Schema, max_blanks: int) -> str:
    options: dict[str, Any] = {"json_allowed_escapes": ESCAPES, "whitespace_flexible": False}
    if max_blanks:
        options["whitespace_flexible"] = True
        options["whitespace_pattern"] = rf"[ \t\n\r]{{1,{max_blanks}}}"
    options["coerce_one_of"] = True  # its branches exclude each other, or texts are judged
    body = {} if schema is True else for_llguidance(schema)
    assert isinstance(body, Mapping), "the schema false was refused before"
    # The library moves the last keyword to the place of its options, so these are the last.
    return "%json " + json.dumps({**body, "x-guidance": options}, ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
