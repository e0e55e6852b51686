"""Backend llguidance: lazy automata, with limits on everything that a grammar can make grow.

Nothing is computed for a grammar before a text needs it, so compiling takes milliseconds; a mask
that would cost too much fails its request. Source: https://github.com/guidance-ai/llguidance
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hotshoe.grammar import Matcher, Vocabulary
from hotshoe.types import GrammarSpec
from hotshoe_structured_output import gbnf, lark
from hotshoe_structured_output.exclusion import undecided
from hotshoe_structured_output.judge import Judge, Test
from hotshoe_structured_output.keywords import LLGUIDANCE, unsupported
from hotshoe_structured_output.schema import Schema, parse_json, reachable, refusal
from hotshoe_structured_output.tags import StructuralTag, parse_tag

if TYPE_CHECKING:
    import llguidance
    import numpy as np
    import numpy.typing as npt

MAX_SCHEMAS = 10_000
#: About 1 to 2 kB each; a grammar that wants more fails.
MAX_LEXER_STATES = 20_000
#: Of the parser, in one mask; 50,000 would keep a step waiting for half a second.
MAX_ITEMS = 10_000
#: At one place of a text. Time may grow with its cube: 2,000 take up to a second, in grammars that
#: read every text in many ways.
MAX_ROW = 2_000
#: How much more these kinds may have: a schema's objects take four for each optional property, and
#: none reads its texts in so many ways that time grows faster than that. Of the masks that were
#: tried, of open objects in `anyOf`, none took more than 0.1 s.
_WIDE = {"json_schema": 4, "structural_tag": 4}
#: Of one object: what the limit above has room for.
MAX_OPTIONAL = 1990
#: What a compiled grammar takes beside its text, and for each byte of it; measured.
BASE_BYTES, BYTES_PER_BYTE = 64 * 1024, 64
MAX_THREADS = 8
#: Classes that mean ASCII characters, as in JSON Schema patterns: \d and \w.
_ASCII = "dw"
_PLACE = re.compile(r"^at \d+\(\d+\): ")
#: How errors of the library begin that no limit has caused -> what they say.
_FAILURES = {
    "NoExtension": "no text that goes on from here fits it",
    'Parser Error: token "': "it does not allow the sampled token",
}
_WRITTEN = re.compile(r"\n\s*\d+ \| ")


class LLGuidance:
    """See `hotshoe.grammar.GrammarBackend`."""

    def missing(self) -> str | None:
        if importlib.util.find_spec("llguidance") is None:
            return "its library is not installed: pip install llguidance"
        return None

    def refusal(self, spec: GrammarSpec) -> str | None:
        if spec.kind == "json_schema":
            return _schemas_refusal(parse_json(spec.value, "schema"), judged=spec.judged)
        if spec.kind == "structural_tag":
            return _tag_refusal(parse_tag(spec.value))
        return None

    def open(self, vocabulary: Vocabulary) -> LLGuidanceCompiler:
        return LLGuidanceCompiler(vocabulary)


def _schemas_refusal(*schemas: Schema, judged: bool = False) -> str | None:
    found = (
        unsupported(schema, LLGUIDANCE, MAX_SCHEMAS) or _too_wide(schema) for schema in schemas
    )
    reason = next((reason for reason in found if reason is not None), None)
    return reason if reason is not None or judged else undecided(*schemas)


def _too_wide(root: Schema) -> str | None:
    """Say which object has more optional properties than a mask has room for."""
    for place, schema in reachable(root):
        count = len(schema.get("properties", {}).keys() - set(schema.get("required", ())))
        if count > MAX_OPTIONAL:
            return f"an object with {count} optional properties, of {MAX_OPTIONAL} (at {place})"
    return None


def _tag_refusal(tag: StructuralTag | dict[str, Any]) -> str | None:
    if not isinstance(tag, StructuralTag):
        return "a structural tag with 'format' is not supported"
    return _schemas_refusal(*tag.schemas)


class _Tokens:
    """What the library asks of a tokenizer. It never has to tokenize.

    The library needs a token that ends a text. A model without one gets one behind its own.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        names = {i: text.encode() for text, i in vocabulary.special.items()}
        self.tokens = [names.get(i, token) for i, token in enumerate(vocabulary.tokens)]
        endings = vocabulary.ending_ids or (len(self.tokens),)
        if not vocabulary.ending_ids:
            self.tokens.append(b"<end>")
        self.special_token_ids = sorted({*names, *endings})
        self.bos_token_id = None
        self.eos_token_id = endings[0]

    def __call__(self, text: bytes) -> list[int]:
        return []


class _Bytes:
    """The same for texts that are followed byte by byte."""

    def __init__(self) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
        self.special_token_ids = [256]
        self.bos_token_id = None
        self.eos_token_id = 256

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _follows(initial: llguidance.LLMatcher, text: str) -> bool:
    """Tell whether a string, written as JSON, is a whole text of a grammar."""
    matcher, written = initial.deep_copy(), json.dumps(text, ensure_ascii=False).encode()
    return matcher.try_consume_tokens(list(written)) == len(written) and matcher.is_accepting()


class LLGuidanceCompiler:
    """See `hotshoe.grammar.GrammarCompiler`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance
        from llguidance import TokenizerWrapper  # type: ignore[attr-defined]

        self._wrap = TokenizerWrapper
        self._library = llguidance
        self._special = vocabulary.special
        wrapped = _Tokens(vocabulary)
        self._num_tokens, self._is_endless = len(vocabulary.tokens), not vocabulary.ending_ids
        self._tokenizer = llguidance.LLTokenizer(
            TokenizerWrapper(wrapped),
            n_vocab=len(wrapped.tokens),
            eos_token=list(vocabulary.ending_ids) or None,
        )
        self._limits = {
            factor: llguidance.LLParserLimits(
                max_lexer_states=MAX_LEXER_STATES,
                step_max_items=MAX_ITEMS * factor,
                max_items_in_row=MAX_ROW * factor,
                verbose_errors=False,
            )
            for factor in {1, *_WIDE.values()}
        }
        threads = min(MAX_THREADS, (os.cpu_count() or 1) // 2)
        # One thread alone would only add the way to it: the step's own is as good.
        self._executor = llguidance.LLExecutor(threads) if threads > 1 else None

    def compile(self, spec: GrammarSpec) -> LLGuidanceGrammar:
        text = _WRITERS[spec.kind](self, spec)
        limits = self._limits[_WIDE.get(spec.kind, 1)]
        matcher = self._library.LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise refusal(f"this {spec.kind} cannot be compiled: {_plain(matcher.get_error())}")
        num_bytes = BASE_BYTES + BYTES_PER_BYTE * len(text)
        return LLGuidanceGrammar(matcher, num_bytes, self._judge(spec))

    def _judge(self, spec: GrammarSpec) -> Judge | None:
        """Return what judges texts of a schema that has `oneOf` taken for `anyOf`."""
        schema = json.loads(spec.value) if spec.judged and spec.kind == "json_schema" else True
        if undecided(schema) is None:
            return None
        plain = self._library.LLTokenizer(self._wrap(_Bytes()), n_vocab=257)

        def compile_test(part: Mapping[str, Any]) -> Test:
            text = lark.json_schema(part, 0)
            matcher = self._library.LLMatcher(plain, text, log_level=0)
            if matcher.is_error():
                raise refusal(f"a pattern cannot be compiled: {_plain(matcher.get_error())}")
            return partial(_follows, matcher)

        return Judge(schema, compile_test)

    def fill(self, matchers: Sequence[Matcher], masks: npt.NDArray[np.int32]) -> None:
        if self._is_endless:
            self._fill_endless(matchers, masks)
        else:
            self._fill(matchers, masks)

    def _fill_endless(self, matchers: Sequence[Matcher], masks: npt.NDArray[np.int32]) -> None:
        """Leave out the token behind the model's own, for which masks may have no word."""
        import numpy as np  # no library loads before a grammar is compiled

        wide = np.zeros((len(masks), self._num_tokens // 32 + 1), np.int32)
        self._fill(matchers, wide)
        wide.view(np.uint32)[:, -1] &= ~np.uint32(1 << self._num_tokens % 32)
        masks[:] = wide[:, : masks.shape[1]]

    def _fill(self, matchers: Sequence[Matcher], masks: npt.NDArray[np.int32]) -> None:
        inner = [(m.inner, i) for i, m in enumerate(matchers) if isinstance(m, LLGuidanceMatcher)]
        assert len(inner) == len(matchers) and masks.flags.c_contiguous
        start, size = masks.ctypes.data, masks.shape[1] * masks.itemsize
        if self._executor is not None and len(inner) > 1:
            self._executor.unsafe_compute_mask_ptr(inner, start, size, len(inner))
            return
        for matcher, i in inner:
            matcher.unsafe_compute_mask_ptr(start + i * size, size)

    def _json_schema(self, spec: GrammarSpec) -> str:
        schema: Schema = json.loads(spec.value)
        return lark.json_schema(schema, _max_blanks(spec))

    def _json_object(self, spec: GrammarSpec) -> str:
        return lark.json_schema({"type": "object"}, _max_blanks(spec))

    def _regex(self, spec: GrammarSpec) -> str:
        return lark.regex(self._escaped(spec.value))

    def _choice(self, spec: GrammarSpec) -> str:
        return lark.choice(json.loads(spec.value))

    def _ebnf(self, spec: GrammarSpec) -> str:
        text = spec.value
        return lark.grammar(text if gbnf.is_lark(text) else gbnf.to_lark(text))

    def _structural_tag(self, spec: GrammarSpec) -> str:
        tag = parse_tag(spec.value)
        assert isinstance(tag, StructuralTag), "others were refused before"
        return lark.structural_tag(tag, self._special, self._escaped, _max_blanks(spec))

    def _escaped(self, pattern: str) -> str:
        if (len(pattern) - len(pattern.rstrip("\\"))) % 2:  # which the library would drop
            raise refusal("a regular expression ends in a backslash")
        return self._library.regex_to_lark(pattern, _ASCII)


def _max_blanks(spec: GrammarSpec) -> int:
    return lark.MAX_BLANKS if spec.max_blanks is None else spec.max_blanks


_WRITERS: Mapping[str, Callable[[LLGuidanceCompiler, GrammarSpec], str]] = {
    "json_schema": LLGuidanceCompiler._json_schema,
    "json_object": LLGuidanceCompiler._json_object,
    "regex": LLGuidanceCompiler._regex,
    "choice": LLGuidanceCompiler._choice,
    "ebnf": LLGuidanceCompiler._ebnf,
    "structural_tag": LLGuidanceCompiler._structural_tag,
}


class LLGuidanceGrammar:
    """See `hotshoe.grammar.JudgingGrammar`. Matchers share the automata that they discover."""

    def __init__(
        self, initial: llguidance.LLMatcher, num_bytes: int, judge: Judge | None = None
    ) -> None:
        self._initial = initial
        self._judge = judge
        self.num_bytes = num_bytes

    def objection(self, text: bytes) -> str | None:
        return None if self._judge is None else self._judge.objection(text)

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._initial.deep_copy())


class LLGuidanceMatcher:
    """See `hotshoe.grammar.Matcher`."""

    def __init__(self, inner: llguidance.LLMatcher) -> None:
        self.inner = inner

    def accept(self, token_id: int) -> bool:
        return self.inner.consume_token(token_id)

    def may_end(self) -> bool:
        return self.inner.is_accepting()

    def fork(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self.inner.deep_copy())

    def failure(self) -> str | None:
        if not self.inner.is_error():
            return None
        error = _plain(self.inner.get_error())
        known = (said for begin, said in _FAILURES.items() if error.startswith(begin))
        return next(known, f"it is too complex: {error}")


def _plain(message: str) -> str:
    """Return a library's message in one line, without the place in what `lark` wrote."""
    message = _WRITTEN.split(message.replace("<non-verbose/>", ""))[0]
    return " ".join(_PLACE.sub("", message).split())
