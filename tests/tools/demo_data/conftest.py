"""Worlds with fresh seeds, for training and for evaluation, over a small word list."""

import random
import secrets
from collections.abc import Callable

import pytest
from demo_data import lexicon
from demo_data.words import World
from tokenizers import Tokenizer

from hotshoe_demo import MODEL

VOCABULARY = lexicon.THINGS + lexicon.OBJECTS + lexicon.VERBS


@pytest.fixture
def worlds() -> Callable[..., list[World]]:
    """Make worlds; the seed is part of a failing world's `repr` through its name."""

    def make(count: int, held_out: bool = False) -> list[World]:
        seed = secrets.randbits(32)
        print(f"worlds from seed {seed}")
        return [World(random.Random(seed + i), VOCABULARY, held_out) for i in range(count)]

    return make


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@pytest.fixture(scope="session")
def vocabulary() -> list[str]:
    return VOCABULARY
