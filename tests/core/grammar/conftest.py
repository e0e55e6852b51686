"""A toy backend over token ids: its "regex" is a list of token sequences, such as "8 9|8 9 10"."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from hotshoe.errors import RequestError
from hotshoe.grammar import Vocabulary
from hotshoe.types import GrammarSpec

VOCAB_SIZE, EOS, SPECIAL = 300, 255, 256


class Panic(BaseException):
    """What is no Exception."""


@dataclass
class ToyMatcher:
    texts: list[tuple[int, ...]]
    taken: tuple[int, ...] = ()

    def accept(self, token_id: int) -> bool:
        self.taken += (token_id,)
        return any(text[: len(self.taken)] == self.taken for text in self.texts)

    def may_end(self) -> bool:
        return self.taken in self.texts

    def fork(self) -> ToyMatcher:
        return ToyMatcher(self.texts, self.taken)

    def failure(self) -> str | None:
        return "it grew too large" if 13 in self.taken else None

    def next_ids(self) -> set[int]:
        at = len(self.taken)
        return {t[at] for t in self.texts if len(t) > at and t[:at] == self.taken}


@dataclass
class ToyGrammar:
    texts: list[tuple[int, ...]]
    num_bytes: int = 1000

    def matcher(self) -> ToyMatcher:
        return ToyMatcher(self.texts)


@dataclass
class ToyCompiler:
    backend: ToyBackend

    def compile(self, spec: GrammarSpec) -> ToyGrammar:
        self.backend.compiled.append(spec.value)
        assert self.backend.gate.wait(60)
        if spec.value.startswith("slow"):
            assert self.backend.release.wait(60)
            return ToyGrammar([])
        if spec.value == "broken":
            raise RequestError("grammar: a bracket is open", "grammar")
        if spec.value == "bug":
            raise ZeroDivisionError("oh\nno")
        if spec.value.startswith("panic"):
            raise Panic("of a library in another language")
        texts = [tuple(map(int, text.split())) for text in spec.value.split("|")]
        return ToyGrammar(texts)

    def fill(self, matchers: Sequence[ToyMatcher], masks: np.ndarray) -> None:
        self.backend.fills.append(len(matchers))
        for matcher, mask in zip(matchers, masks, strict=True):
            bits = np.zeros(len(mask) * 32, np.uint8)
            bits[[*matcher.next_ids(), EOS]] = 1
            mask[:] = np.packbits(bits, bitorder="little").view(np.int32)


@dataclass
class ToyBackend:
    """`gate` holds compilations up, `release` slow ones; the lists say what was asked."""

    gate: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    compiled: list[str] = field(default_factory=list)
    fills: list[int] = field(default_factory=list)
    lacks: str | None = None
    opened: int = 0

    def missing(self) -> str | None:
        return self.lacks

    def refusal(self, spec: GrammarSpec) -> str | None:
        return None if spec.kind == "regex" else f"{spec.kind} is not supported"

    def open(self, vocabulary: Vocabulary) -> ToyCompiler:
        self.opened += 1
        return ToyCompiler(self)


@pytest.fixture
def toy() -> ToyBackend:
    backend = ToyBackend()
    backend.gate.set()
    return backend


@pytest.fixture
def vocabulary() -> Vocabulary:
    tokens = [bytes([i % 256]) if i < EOS else b"" for i in range(VOCAB_SIZE)]
    return Vocabulary(tuple(tokens), {"<special>": SPECIAL}, (EOS,))


def ids_in(mask: bytes) -> set[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())
