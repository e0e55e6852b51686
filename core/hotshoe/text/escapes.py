"""Keeps control tokens that somebody spells in a text from becoming those tokens.

A chat template writes the markup of roles with control tokens, and messages come from strangers. So
each control token that is spelled in what the template is given gets a mark behind its first
character. The template's own markup has none. `Guarded` tokenizes such a text: the library looks
for added tokens first, and splits the rest at the marks, which it drops. So no model of any kind
can make the token of the two parts, and all else is what it always was. Used by `Tokenizer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

#: Three brackets of mathematics that no text has in a row. They survive normalizers and `repr`,
#: which templates apply to objects.
MARK = "\u29da\u29db\u29da"
#: The form of control tokens that some tokenizers do not declare as special.
_CONTROL = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)
_SPLIT = {"type": "Split", "pattern": {"String": MARK}, "behavior": "Removed", "invert": False}


class Guarded:
    """The control tokens of one tokenizer: the special ones, and those in the form `<|...|>`.

    Args:
        backend: The library's tokenizer; it stays as it is.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        added = backend.get_added_tokens_decoder()
        #: By id. One character cannot be split, and is text wherever it stands.
        self._controls = {
            i: token.content
            for i, token in added.items()
            if len(token.content) > 1 and (token.special or _CONTROL.fullmatch(token.content))
        }
        #: Whether the library finds some of them only in normalized text, where it may make them.
        self.looks_later = any(added[i].normalized for i in self._controls)
        self._plain = backend

    @cached_property
    def _places(self) -> re.Pattern[str] | None:
        """Matches the first character of every control token, be they one in another."""
        trie = _trie(self._controls.values())
        return re.compile(f"(?=(?:{trie})).", re.DOTALL) if self._controls else None

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """A tokenizer that splits at marks, and drops them, once control tokens have been found."""
        import tokenizers

        spec = json.loads(self._plain.to_str())
        for token in spec["added_tokens"]:
            if token["id"] in self._controls:
                token["normalized"] = False  # found before normalizing, and only then
        steps = [_SPLIT, spec["pre_tokenizer"]] if spec.get("pre_tokenizer") else [_SPLIT]
        spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        return tokenizers.Tokenizer.from_str(json.dumps(spec))

    def escape(self, value: Any) -> Any:
        """Return a value with marks in all texts that it holds, keys included.

        A mark that is there already is left: it goes with the others.
        """
        if isinstance(value, str):
            return value if self._places is None else self._places.sub(rf"\g<0>{MARK}", value)
        if isinstance(value, Mapping):
            return {self.escape(name): self.escape(entry) for name, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.escape(entry) for entry in value]
        return value


def unmarked(text: str) -> str:
    """Return a text without marks."""
    return text.replace(MARK, "")


def _trie(words: Iterable[str]) -> str:
    """Return an expression of words whose time does not grow with their number."""
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return _expression(root)


def _expression(node: Mapping[str, Any]) -> str:
    """Return the expression of a node; once a word ends, no longer one matters."""
    if "" in node:
        return ""
    prefix = ""
    while len(node) == 1 and "" not in node:  # a run of characters, so that nesting stays shallow
        [(char, node)] = node.items()
        prefix += re.escape(char)
    if "" in node:
        return prefix
    return f"{prefix}(?:{'|'.join(re.escape(c) + _expression(n) for c, n in node.items())})"
