"""Backend xgrammar: masks prepared when compiling, so that steps are fast. On request only.

Its JSON Schema support skips keywords silently, so `keywords` lets through what it honors. Its
matching has no limits: grammars of the client's own and expressions that repeat groups, which may
keep it busy for hours over one token, are refused, and every step of a text is made `apart`.
Source: https://github.com/mlc-ai/xgrammar
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hotshoe.grammar import Matcher, Vocabulary
from hotshoe.types import GrammarSpec
from hotshoe_structured_output.apart import Apart
from hotshoe_structured_output.keywords import XGRAMMAR, unsupported
from hotshoe_structured_output.rewriting import for_xgrammar
from hotshoe_structured_output.schema import Schema, parse_json, refusal
from hotshoe_structured_output.tags import Parts, StructuralTag, parse_tag

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import xgrammar

#: Compiling grows faster than the schema and cannot be stopped: larger ones are refused.
MAX_SCHEMAS = 500
#: In one place of JSON, unless a specification says more.
MAX_BLANKS = 1
_JSON_KINDS = frozenset({"json_schema", "json_object", "structural_tag"})
#: Time and line of the library's source, before its messages.
_PLACE = re.compile(r"^\[[\d:]+\] \S+: ")
_PARTS_OF_REGEX = re.compile(
    r"(?P<escape>\\[^bBpPkAzZ1-9])|(?P<set>\[(?:\\[^bBpPkAzZ1-9]|[^\[\]\\])+\])"
    r"|(?P<bad>\(\?(?!:)|\\[bBpPkAzZ1-9]|(?<!\A)\^|\$(?!\Z))"
    r"|(?P<repeated>\)[*+{])|\{(?P<counts>[\d,]*)\}",
    re.DOTALL,
)
MAX_REGEX_BYTES = 1000
#: Of one character, in an expression.
MAX_REPETITIONS = 256
#: Parts of its own structural tags that are served, and their fields. Others have no limits.
_FORMATS: Mapping[str, frozenset[str]] = {
    "any_text": frozenset(),
    "const_string": frozenset({"value"}),
    "json_schema": frozenset({"json_schema"}),
    "or": frozenset({"elements"}),
    "regex": frozenset({"pattern"}),
    "sequence": frozenset({"elements"}),
    "tag": frozenset({"begin", "content", "end"}),
    "tags_with_separator": frozenset({"tags", "separator", "at_least_one", "stop_after_first"}),
    "triggered_tags": frozenset({"triggers", "tags", "at_least_one", "stop_after_first"}),
}
#: Fields that hold parts, or lists of them.
_PARTS_OF = ("content", "elements", "tags")
MAX_PARTS = 1000
_UNLIMITED = "is not supported, because the library matches it without a limit"


class XGrammar:
    """See `hotshoe.grammar.GrammarBackend`."""

    def missing(self) -> str | None:
        if importlib.util.find_spec("xgrammar") is None:
            return "its library is not installed: pip install xgrammar"
        return None

    def refusal(self, spec: GrammarSpec) -> str | None:
        if spec.max_blanks == 0 and spec.kind in _JSON_KINDS:
            return "JSON without any blanks is not supported"
        if spec.kind == "json_schema":
            return unsupported(parse_json(spec.value, "schema"), XGRAMMAR, MAX_SCHEMAS)
        if spec.kind == "structural_tag":
            return _tag_refusal(parse_tag(spec.value))
        if spec.kind == "regex":
            return _regex_refusal(spec.value)
        return f"a grammar {_UNLIMITED}" if spec.kind == "ebnf" else None

    def open(self, vocabulary: Vocabulary) -> XGrammarCompiler:
        return XGrammarCompiler(vocabulary)


def _regex_refusal(pattern: str) -> str | None:
    if len(pattern.encode()) > MAX_REGEX_BYTES:
        return f"a regular expression of more than {MAX_REGEX_BYTES} bytes is not supported"
    for match in _PARTS_OF_REGEX.finditer(pattern):
        if match["bad"]:
            return f"{match['bad']!r} in a regular expression is not supported"
        if match["repeated"]:
            return f"a repeated group in a regular expression {_UNLIMITED}"
        if any(int(n) > MAX_REPETITIONS for n in (match["counts"] or "").split(",") if n):
            return f"more than {MAX_REPETITIONS} repetitions in a regular expression"
    return None


def _tag_refusal(tag: StructuralTag | dict[str, Any]) -> str | None:
    if isinstance(tag, StructuralTag):
        if (tag.leading and not tag.at_least_one) or tag.marks or tag.preface:
            return "a structural tag with leading, marks or preface is not supported"
        parts = any(tag.openings) or tag.closing or tag.separator is not None
        if parts and tag.at_least_one and not tag.stop_after_first:
            return "free text behind a first section with opening, separator or closing"
        if tag.closing and not all(tag.openings) and not tag.at_least_one:
            return "a structural tag with closing, but no opening"
        endless = tag.separator is not None and not tag.closing
        if endless and any(tag.openings) and not tag.at_least_one:
            return "any number of sections behind an opening, without a closing"
        if any(a != b and a.endswith(b) for a in tag.triggers for b in tag.triggers):
            return "a trigger that another one ends with"
        schemas = tag.schemas
        patterns = [part.value for part in tag.parts() if part.kind == "regex"]
        refused = next((reason for one in patterns if (reason := _regex_refusal(one))), None)
        if refused is not None:
            return refused
    else:
        return _format_refusal(tag)
    found = (unsupported(schema, XGRAMMAR, MAX_SCHEMAS) for schema in schemas)
    return next((reason for reason in found if reason is not None), None)


def _format_refusal(tag: Mapping[str, Any]) -> str | None:
    """Judge xgrammar's own description, of which only parts that can be bounded are served."""
    if not tag.keys() <= {"type", "format"}:
        raise refusal("a structural tag with 'format' has no other fields")
    parts = [tag["format"]]
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise refusal("each part of a structural tag's 'format' is an object with a 'type'")
        if len(parts) > MAX_PARTS:
            return f"a structural tag with more than {MAX_PARTS} parts is not supported"
        if kind not in _FORMATS:
            return f"format {kind!r} of a structural tag {_UNLIMITED}"
        unknown = part.keys() - _FORMATS[kind] - {"type"}
        if unknown:
            return f"field {min(unknown)!r} of format {kind!r} is not supported"
        reason = _leaf_refusal(kind, part)
        if reason is not None:
            return reason
        parts += _inner(part)
    return None


def _inner(part: Mapping[str, Any]) -> list[Any]:
    """Return the parts that a part has."""
    found: list[Any] = []
    for field in _PARTS_OF:
        inner = part.get(field, [])
        found += inner if isinstance(inner, list) else [inner]
    return found


def _leaf_refusal(kind: str, part: Mapping[str, Any]) -> str | None:
    if kind == "json_schema":
        return unsupported(part.get("json_schema", True), XGRAMMAR, MAX_SCHEMAS)
    if kind == "regex":
        return _regex_refusal(str(part.get("pattern", "")))
    return None


class XGrammarCompiler:
    """See `hotshoe.grammar.GrammarCompiler`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._library = xgrammar
        # Without stop tokens, a complete text leaves an empty mask; core adds what ends it.
        info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            xgrammar.VocabType.RAW,
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=[],
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._apart = Apart()

    def compile(self, spec: GrammarSpec) -> XGrammarGrammar:
        try:
            compiled = _COMPILERS[spec.kind](self, spec.value, _max_blanks(spec))
        except RuntimeError as error:
            message = " ".join(_PLACE.sub("", str(error)).split())
            raise refusal(f"this {spec.kind} cannot be compiled: {message}") from error
        return XGrammarGrammar(compiled, self._library, self._apart)

    def fill(self, matchers: Sequence[Matcher], masks: npt.NDArray[np.int32]) -> None:
        masks[:] = 0
        mine = [m for m in matchers if isinstance(m, XGrammarMatcher)]
        assert len(mine) == len(matchers)
        rows = [(m, masks[i : i + 1]) for i, m in enumerate(mine) if m.failure() is None]
        results = self._apart([partial(m.fill, row) for m, row in rows])
        for (matcher, _), result in zip(rows, results, strict=True):
            if result is None:
                matcher.fail()

    def _json_schema(self, value: str, max_blanks: int) -> xgrammar.CompiledGrammar:
        schema = json.dumps(for_xgrammar(json.loads(value)))
        return self._compiler.compile_json_schema(schema, max_whitespace_cnt=max_blanks)

    def _json_object(self, value: str, max_blanks: int) -> xgrammar.CompiledGrammar:
        return self._json_schema('{"type":"object"}', max_blanks)

    def _regex(self, value: str, max_blanks: int) -> xgrammar.CompiledGrammar:
        return self._compiler.compile_regex(value)

    def _choice(self, value: str, max_blanks: int) -> xgrammar.CompiledGrammar:
        texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(value))
        return self._compiler.compile_grammar(f"root ::= {' | '.join(texts)}")

    def _structural_tag(self, value: str, max_blanks: int) -> xgrammar.CompiledGrammar:
        tag = parse_tag(value)
        if isinstance(tag, StructuralTag):
            tag = _own_format(tag)
        todo = [tag["format"]]
        for part in todo:
            if part["type"] == "json_schema":
                part["json_schema"] = for_xgrammar(part.get("json_schema", True))
                part["max_whitespace_cnt"] = max_blanks
            todo += _inner(part)
        return self._compiler.compile_structural_tag(json.dumps(tag))


def _max_blanks(spec: GrammarSpec) -> int:
    return MAX_BLANKS if spec.max_blanks is None else spec.max_blanks


_COMPILERS: Mapping[str, Callable[[XGrammarCompiler, str, int], xgrammar.CompiledGrammar]] = {
    "json_schema": XGrammarCompiler._json_schema,
    "json_object": XGrammarCompiler._json_object,
    "regex": XGrammarCompiler._regex,
    "choice": XGrammarCompiler._choice,
    "structural_tag": XGrammarCompiler._structural_tag,
}


def _own_format(tag: StructuralTag) -> dict[str, Any]:
    tags = [_tag(s.begin, _parts(s.parts), s.end) for s in tag.structures]
    calls = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": tag.separator or "",
        "at_least_one": True,
        "stop_after_first": tag.separator is None,
    }
    if tag.at_least_one and tag.stop_after_first:
        texts = [_sequence(opening, calls, tag.closing) for opening in tag.openings]
        if tag.otherwise is not None:
            texts.append(_json(tag.otherwise))
        only = texts[0] if len(texts) == 1 else {"type": "or", "elements": texts}
        return {"type": "structural_tag", "format": only}
    plain = [] if all(tag.openings) else tags
    free = {
        "type": "triggered_tags",
        "triggers": list(tag.triggers),
        "tags": [*plain, *(_tag(o, calls, tag.closing) for o in tag.openings if o)],
        "at_least_one": tag.at_least_one,
        "stop_after_first": tag.stop_after_first,
    }
    return {"type": "structural_tag", "format": free}


def _parts(parts: Parts) -> dict[str, Any]:
    found = [_PARTS[part.kind](part.value) for part in parts]
    return {"type": "sequence", "elements": found} if found else _text("")


def _text(value: str) -> dict[str, Any]:
    if not value:
        return {"type": "grammar", "grammar": 'root ::= ""'}
    return {"type": "const_string", "value": value}


def _either(choices: Sequence[Parts]) -> dict[str, Any]:
    return {"type": "or", "elements": [_parts(parts) for parts in choices]}


def _json(schema: Schema) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


def _tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _sequence(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    marks = [_text(text) if text else None for text in (begin, end)]
    parts = [part for part in (marks[0], content, marks[1]) if part is not None]
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": parts}


_PARTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "text": _text,
    "schema": _json,
    "regex": lambda pattern: {"type": "regex", "pattern": pattern},
    "until": lambda end: _tag("", {"type": "any_text"}, end),
    "either": _either,
}


class XGrammarGrammar:
    """See `hotshoe.grammar.CompiledGrammar`."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, library: Any, apart: Apart) -> None:
        self._compiled = compiled
        self._library = library
        self._apart = apart
        self.num_bytes: int = compiled.memory_size_bytes

    def matcher(self) -> XGrammarMatcher:
        return XGrammarMatcher(self._library.GrammarMatcher(self._compiled), self._apart)


class XGrammarMatcher:
    """See `hotshoe.grammar.Matcher`. Once a call took too long, nothing touches it again."""

    def __init__(self, inner: xgrammar.GrammarMatcher, apart: Apart) -> None:
        self._inner = inner
        self._apart = apart
        self._failure: str | None = None

    def accept(self, token_id: int) -> bool:
        if self._failure is not None:
            return False
        [taken] = self._apart([partial(self._inner.accept_token, token_id)])
        if taken is None:
            self.fail()
        return bool(taken)

    def fill(self, row: npt.NDArray[np.int32]) -> bool:
        """Write this text's mask, [1, num_words]. To be called apart."""
        self._inner.fill_next_token_bitmask(row)
        return True

    def fail(self) -> None:
        """Remember that a call took too long."""
        self._failure = (
            f"it is too complex: matching it took longer than {self._apart.limit_s:g} s, or other "
            "grammars hold all threads for that"
        )

    def may_end(self) -> bool:
        return self._failure is None and self._inner.is_completed()

    def fork(self) -> XGrammarMatcher:
        if self._failure is not None:
            return self
        return XGrammarMatcher(self._inner.fork(), self._apart)

    def failure(self) -> str | None:
        return self._failure
