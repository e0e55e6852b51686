"""Bounds the text that a tokenizer's steps may make: of every character, of every token.

Normalizers and decoders replace text by text that the model's authors chose, step after step, so
that a short file can make gigabytes of a short word. How far each step multiplies is computed from
the file, before a step runs. `Tokenizer` asks for normalizers, `TokenPieces` for decoders.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from hotshoe.errors import CheckpointError

#: Known tokenizers stay below 40: one ligature becomes 18 letters, and some replace marks.
MAX_GROWTH = 64
MAX_STEPS = 64
#: Characters of one token; those of known tokenizers have some hundred.
MAX_TOKEN_LENGTH = 4096
_PARTS = ("normalizers", "decoders", "pretokenizers")


class _Model(msgspec.Struct):
    vocab: dict[str, Any] | list[tuple[str, float]] = {}


class _Added(msgspec.Struct):
    content: str


class _File(msgspec.Struct):
    """What is looked at in a tokenizer.json; the rest is skipped."""

    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    added_tokens: list[_Added] = []


def check_file(data: bytes) -> None:
    """Refuse a tokenizer.json whose steps multiply text, or whose tokens are too long.

    Raises:
        CheckpointError: The step or the limit is named; or the file is malformed.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CheckpointError(f"it is malformed: {error}") from None
    for kind, spec in (("normalizer", file.normalizer), ("pre-tokenizer", file.pre_tokenizer)):
        if spec is not None:
            check_growth(kind, spec)
    vocab = file.model.vocab
    texts = vocab if isinstance(vocab, dict) else (text for text, _ in vocab)
    lengths = [*map(len, texts), *(len(token.content) for token in file.added_tokens)]
    if max(lengths, default=0) > MAX_TOKEN_LENGTH:
        raise CheckpointError(
            f"it has a token of {max(lengths)} characters; at most {MAX_TOKEN_LENGTH} can be"
        )


def check_growth(kind: str, spec: Mapping[str, Any]) -> None:
    """Refuse steps that together multiply text.

    Args:
        kind: Of the steps, for the message: "normalizer" or "decoder".
        spec: A step as in tokenizer.json, perhaps a Sequence.

    Raises:
        CheckpointError: There are too many steps, they multiply, or one is malformed.
    """
    steps = []
    try:
        for step in flatten(spec):
            steps.append(step)
            if len(steps) > MAX_STEPS:
                raise CheckpointError(f"its {kind} has more than {MAX_STEPS} steps")
        growth = math.prod(_GROWTH[s["type"]](s) for s in steps if s["type"] in _GROWTH)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"its {kind} is malformed: {error or type(error).__name__}") from None
    if growth > MAX_GROWTH:
        raise CheckpointError(
            f"its {kind} can make {growth:.0f} characters of one; at most {MAX_GROWTH} can be"
        )


def flatten(spec: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Yield the steps of a Sequence, one by one, or the only step."""
    if spec["type"] != "Sequence":
        yield spec
        return
    [name] = [name for name in _PARTS if name in spec]
    for part in spec[name]:
        yield from flatten(part)


def _replace(step: Mapping[str, Any]) -> float:
    pattern, content = step["pattern"], step["content"]
    if "String" not in pattern:  # an expression may match nothing, between any two characters
        return 1 + len(content)
    if not pattern["String"]:
        raise ValueError("Replace has an empty pattern")
    return max(1.0, len(content) / len(pattern["String"]))


def _precompiled(step: Mapping[str, Any]) -> float:
    """A table of SentencePiece: the size of a trie, the trie, then texts that end with NUL."""
    data = base64.b64decode(step["precompiled_charsmap"] or "")
    texts = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    return max(1, *(len(text.decode(errors="replace")) for text in texts))


#: How many characters a step makes of one, where that is more than a few.
_GROWTH: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "ByteLevel": lambda step: 2,
    "Precompiled": _precompiled,
    "Prepend": lambda step: 1 + len(step["prepend"]) / MAX_GROWTH,
    "Replace": _replace,
}
