"""Prompts have exactly as many tokens as asked for, in ids and in text."""

import random

import pytest

from hotshoe.errors import ConfigError
from hotshoe.text.tokenizer import Tokenizer
from hotshoe_bench.prompts import FIRST_ID, IdWriter, TextWriter, compose
from hotshoe_demo import MODEL


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(MODEL)


@pytest.fixture(scope="module")
def writer(tokenizer: Tokenizer) -> TextWriter:
    return TextWriter(tokenizer)


@pytest.mark.parametrize("length", [1, 2, 17, 500])
def test_texts_encode_to_their_length(tokenizer, writer, length: int) -> None:
    rng = random.Random(length)
    text, stated = compose(writer, [], length, rng)
    assert stated == length
    assert len(tokenizer.encode(text, add_special_tokens=False)) == length


def test_texts_share_their_prefix_in_tokens(tokenizer, writer) -> None:
    rng = random.Random(0)
    prefix = writer.draw(40, rng)
    texts = [compose(writer, prefix, 9, rng)[0] for _ in range(5)]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert {tuple(one[:40]) for one in ids} == {tuple(prefix)}
    assert {len(one) for one in ids} == {49}
    assert len(set(texts)) == 5


def test_words_are_varied(writer) -> None:
    assert len(set(writer.draw(1000, random.Random(0)))) > 300


def test_ids_keep_clear_of_the_front_and_below_the_vocabulary() -> None:
    drawn = IdWriter(600).draw(2000, random.Random(0))
    assert min(drawn) == FIRST_ID
    assert max(drawn) == 599
    assert set(IdWriter(4).draw(100, random.Random(0))) == {2, 3}


def test_a_tokenizer_without_words(monkeypatch, tokenizer) -> None:
    monkeypatch.setattr(type(tokenizer), "decode", lambda self, ids: "?")
    with pytest.raises(ConfigError, match="no tokens that stay"):
        TextWriter(tokenizer)


def test_a_tokenizer_that_joins_everything() -> None:
    class Joins:
        def draw(self, length: int, rng: random.Random) -> list[int]:
            return [1] * length

        def write(self, token_ids) -> None:
            return None

    with pytest.raises(ConfigError, match="no text of exactly 5 tokens"):
        compose(Joins(), [1, 2], 3, random.Random(0))
