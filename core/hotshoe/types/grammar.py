"""What a generated text must conform to: a value that is bounded when built, compiled elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hotshoe.errors import RequestError

#: Kinds whose value is empty.
PLAIN_KINDS = ("json_object", "text")
KINDS = (*PLAIN_KINDS, "json_schema", "regex", "choice", "ebnf", "structural_tag")
MAX_GRAMMAR_BYTES = 1024 * 1024
MAX_BLANKS = 40
MAX_AFTER = 16
MAX_AFTER_TOKENS = 64
#: Token ids are bounded by the vocabulary once that is known; until then by what 32 bits hold.
MAX_TOKEN_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar that the generated text follows from its first token, or from a later place.

    Equal specifications share one compiled grammar. Use the constructors below; they take Python
    values and check them.

    Attributes:
        kind: One of KINDS.
        value: The schema, regular expression, grammar or tag description, as text; a JSON array of
            strings for "choice", empty for "json_object", and for "text", which is free behind
            `after`, too.
        after: Token-id sequences. When given, text is free until one of them has been generated,
            such as the end of a reasoning section, and the grammar begins behind it. The prompt is
            never searched, so that what an earlier turn said cannot begin it.
        free_tokens: Most tokens of the free text; then the first of `after` is made to come.
        opening: Token-id sequences. When given, `free_tokens` holds only for a text that begins
            with one of them.
        backend: Name of the backend that must serve it; None leaves it to the engine.
        max_blanks: Most blanks, tabs and newlines where JSON allows any, 0 to MAX_BLANKS; None
            leaves it to the engine.
        strict: Without it, a JSON Schema that no backend serves asks for any JSON object.
        judged: An undecided `oneOf` is kept as `anyOf`, and finished texts judged; the engine's.
        fallbacks: Backends that may serve it where `backend` cannot compile it; the engine's.

    Raises:
        RequestError: A part is missing, of the wrong type or too large; `field` is "grammar".
    """

    kind: str
    value: str = ""
    after: tuple[tuple[int, ...], ...] = ()
    backend: str | None = None
    max_blanks: int | None = None
    strict: bool = True
    fallbacks: tuple[str, ...] = ()
    free_tokens: int | None = None
    opening: tuple[tuple[int, ...], ...] = ()
    judged: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise _refusal(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if not isinstance(self.value, str):
            raise _refusal(f"value must be text, not {type(self.value).__name__}")
        if self.backend is not None and not isinstance(self.backend, str):
            raise _refusal(f"backend must be a name, not {self.backend!r}")
        if self.max_blanks is not None and not _is_count(self.max_blanks, MAX_BLANKS):
            raise _refusal(f"max_blanks must be 0 to {MAX_BLANKS}, not {self.max_blanks!r}")
        if (self.kind in PLAIN_KINDS) != (not self.value):
            raise _refusal(f"{self.kind} takes {'no' if self.value else 'a non-empty'} value")
        self._check_size()
        for name in ("after", "opening"):
            object.__setattr__(self, name, _sequences(name, getattr(self, name)))
        if self.free_tokens is not None and not _is_count(self.free_tokens, MAX_TOKEN_ID):
            raise _refusal(f"free_tokens is a number of tokens, not {self.free_tokens!r}")
        if (self.free_tokens is not None or self.kind == "text") and not self.after:
            raise _refusal("free_tokens and kind text need after, which ends the free text")

    @property
    def bare(self) -> GrammarSpec:
        """The same without its free text: what is compiled."""
        return replace(self, after=(), free_tokens=None, opening=())

    def _check_size(self) -> None:
        try:
            size = len(self.value.encode())
        except UnicodeEncodeError as error:
            raise _refusal("the value holds an unpaired surrogate, so it is not text") from error
        if size > MAX_GRAMMAR_BYTES:
            raise _refusal(f"the value has {size} bytes; at most {MAX_GRAMMAR_BYTES} are allowed")

    @classmethod
    def json_schema(
        cls, schema: Mapping[str, Any] | bool | str, after: Iterable[Sequence[int]] = ()
    ) -> GrammarSpec:
        """Follow a JSON Schema, given as a value or as JSON text."""
        return cls("json_schema", _json_text(schema), tuple(map(tuple, after)))

    @classmethod
    def json_object(cls, after: Iterable[Sequence[int]] = ()) -> GrammarSpec:
        """Give any JSON object."""
        return cls("json_object", "", tuple(map(tuple, after)))

    @classmethod
    def regex(cls, pattern: str, after: Iterable[Sequence[int]] = ()) -> GrammarSpec:
        """Match a regular expression with the whole text."""
        return cls("regex", pattern, tuple(map(tuple, after)))

    @classmethod
    def text(
        cls,
        after: Iterable[Sequence[int]],
        free_tokens: int,
        opening: Iterable[Sequence[int]] = (),
    ) -> GrammarSpec:
        """Be free, but reach one of `after` within so many tokens, as reasoning shall end."""
        ends, begins = tuple(map(tuple, after)), tuple(map(tuple, opening))
        return cls("text", "", ends, free_tokens=free_tokens, opening=begins)

    @classmethod
    def choice(cls, choices: Iterable[str], after: Iterable[Sequence[int]] = ()) -> GrammarSpec:
        """Be one of several strings."""
        texts = [choices] if isinstance(choices, str) else list(choices)
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise _refusal("choice takes at least one string, and no empty one")
        return cls("choice", _json_text(texts), tuple(map(tuple, after)))

    @classmethod
    def ebnf(cls, grammar: str, after: Iterable[Sequence[int]] = ()) -> GrammarSpec:
        """Follow a context-free grammar."""
        return cls("ebnf", grammar, tuple(map(tuple, after)))

    @classmethod
    def structural_tag(
        cls, tag: Mapping[str, Any] | str, after: Iterable[Sequence[int]] = ()
    ) -> GrammarSpec:
        """Leave text free but for sections between tags, each of which follows a schema."""
        return cls("structural_tag", _json_text(tag), tuple(map(tuple, after)))


def _json_text(value: Any) -> str:
    """Return JSON; text is taken to be JSON already."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise _refusal(f"the value cannot be written as JSON: {error}") from error


def _sequences(name: str, value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (tuple, list)) or len(value) > MAX_AFTER:
        raise _refusal(f"{name} takes at most {MAX_AFTER} token sequences")
    for sequence in value:
        if not isinstance(sequence, (tuple, list)) or not 0 < len(sequence) <= MAX_AFTER_TOKENS:
            raise _refusal(f"{name} takes sequences of 1 to {MAX_AFTER_TOKENS} token ids")
        for token_id in sequence:
            if not _is_count(token_id, MAX_TOKEN_ID):
                raise _refusal(f"{name} takes token ids, not {token_id!r}")
    return tuple(map(tuple, value))


def _is_count(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit


def _refusal(message: str) -> RequestError:
    return RequestError(f"grammar: {message}", "grammar")
