"""The demo model's vocabulary, both backends over it, and texts that only a grammar shapes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hotshoe.grammar import CompiledGrammar, GrammarBackend, GrammarCompiler, Matcher, Vocabulary
from hotshoe.grammar.vocabulary import vocabulary_of
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import GrammarSpec
from hotshoe_structured_output.llguidance_backend import LLGuidance
from hotshoe_structured_output.xgrammar_backend import XGrammar

BACKENDS: dict[str, Callable[[], GrammarBackend]] = {"llguidance": LLGuidance, "xgrammar": XGrammar}
#: Tokens that tend to end strings, lists and numbers, so that random texts come to an end.
ENDERS = frozenset(
    (
        b"@",
        b".",
        b":",
        b'"',
        b"]",
        b"}",
        b'"}',
        b'"]',
        b"}]",
        b"]}",
        b'",',
        b'":',
        b"\n</tool_call>",
    )
)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    demo = pytest.importorskip("hotshoe_demo", reason="hotshoe-demo is not installed")
    return Tokenizer.load(Path(demo.__file__).parent / "model")


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return vocabulary_of(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


@dataclass
class Bench:
    """A backend over a vocabulary, and what tests ask of it."""

    backend: GrammarBackend
    compiler: GrammarCompiler
    vocabulary: Vocabulary
    encode: Callable[[str], list[int]]

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        assert self.backend.refusal(spec) is None
        return self.compiler.compile(spec)

    def allowed(self, matcher: Matcher) -> np.ndarray:
        """The ids that the mask allows; endings left out."""
        mask = np.zeros((1, self.vocabulary.num_words), np.int32)
        self.compiler.fill([matcher], mask)
        bits = np.unpackbits(mask.view(np.uint8)[0], bitorder="little")
        bits[list(self.vocabulary.ending_ids)] = 0
        return np.flatnonzero(bits)

    def accepts(self, grammar: CompiledGrammar, text: str) -> bool:
        """Whether a text can be generated whole: every token within the mask before it."""
        matcher = grammar.matcher()
        for token_id in self.encode(text):
            if token_id not in self.allowed(matcher) or not matcher.accept(token_id):
                return False
        return matcher.may_end()

    def random_text(self, grammar: CompiledGrammar, seed: int, max_tokens: int = 3000) -> str:
        """A text of random tokens within the masks."""
        rng, matcher, text = random.Random(seed), grammar.matcher(), b""
        tokens = self.vocabulary.tokens
        for _ in range(max_tokens):
            ids = self.allowed(matcher)
            assert matcher.failure() is None
            if matcher.may_end() and (not len(ids) or rng.random() < 0.5):
                # What is no UTF-8 reaches a client as U+FFFD; only xgrammar lets it come.
                strict = isinstance(self.backend, LLGuidance)
                return text.decode(errors="strict" if strict else "replace")
            assert len(ids), f"a dead end after {text!r}"
            enders = [i for i in ids.tolist() if tokens[i] in ENDERS]
            token_id = rng.choice(enders) if enders and rng.random() < 0.5 else rng.choice(ids)
            assert matcher.accept(int(token_id))
            text += tokens[token_id]
        raise AssertionError(f"no end after {max_tokens} tokens: {text[-200:]!r}")


@pytest.fixture(scope="session", params=BACKENDS)
def bench(
    request: pytest.FixtureRequest, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> Iterator[Bench]:
    return make_bench(request.param, vocabulary, tokenizer)


@pytest.fixture(scope="session")
def llguidance_bench(vocabulary: Vocabulary, tokenizer: Tokenizer) -> Bench:
    return make_bench("llguidance", vocabulary, tokenizer)


def make_bench(name: str, vocabulary: Vocabulary, tokenizer: Tokenizer) -> Bench:
    pytest.importorskip(name, reason=f"{name} is not installed")
    backend = BACKENDS[name]()
    return Bench(
        backend,
        backend.open(vocabulary),
        vocabulary,
        lambda text: tokenizer.encode(text, add_special_tokens=False),
    )


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
