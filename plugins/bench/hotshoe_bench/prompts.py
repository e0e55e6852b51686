"""Prompts of an exact number of tokens, as token ids or as text that encodes to that many.

Text is written with tokens that keep their shape between others: a blank and small letters. What
was written is encoded again and must give the same ids, so lengths and shared prefixes are
exact, not nearly so.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Protocol

from hotshoe.errors import ConfigError
from hotshoe.text.tokenizer import Tokenizer

Prompt = list[int] | str
#: A conversation as `/v1/chat/completions` takes it.
Messages = list[dict[str, str]]

#: Leaves out the ids in front, where many vocabularies keep special tokens and single bytes.
FIRST_ID = 256
ENOUGH_WORDS = 4096
ATTEMPTS = 20
_WORD = re.compile(" [a-z]{2,}")


class Writer(Protocol):
    """Makes prompts of random tokens."""

    def draw(self, length: int, rng: random.Random) -> list[int]:
        """Return random token ids."""
        ...

    def write(self, token_ids: Sequence[int]) -> Prompt | None:
        """Return drawn ids as a server takes them, or None if they would not arrive as they are."""
        ...


class IdWriter:
    """Prompts as token ids, which every tokenizer leaves as they are.

    Raises:
        ConfigError: The vocabulary is too small.
    """

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 2:
            raise ConfigError(f"--vocab-size must be at least 2, not {vocab_size}")
        self._ids = range(min(FIRST_ID, vocab_size // 2), vocab_size)

    def draw(self, length: int, rng: random.Random) -> list[int]:
        return rng.choices(self._ids, k=length)

    def write(self, token_ids: Sequence[int]) -> Prompt | None:
        return list(token_ids)


class TextWriter:
    """Prompts as text.

    Raises:
        ConfigError: The tokenizer has no words that could be used.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._words = _stable_words(tokenizer)
        if not self._words:
            raise ConfigError(
                "this tokenizer has no tokens that stay as they are in a text; "
                "measure with --endpoint /v1/completions without --text"
            )

    def draw(self, length: int, rng: random.Random) -> list[int]:
        return rng.choices(self._words, k=length)

    def write(self, token_ids: Sequence[int]) -> Prompt | None:
        text = self._tokenizer.decode(token_ids)
        exact = self._tokenizer.encode(text, add_special_tokens=False) == list(token_ids)
        return text if exact else None


def compose(
    writer: Writer, prefix: Sequence[int], length: int, rng: random.Random
) -> tuple[Prompt, int]:
    """Return a prompt that begins with `prefix` and has `length` more tokens, and its full length.

    Raises:
        ConfigError: The tokenizer joins tokens however they are drawn.
    """
    for _ in range(ATTEMPTS):
        token_ids = [*prefix, *writer.draw(length, rng)]
        prompt = writer.write(token_ids)
        if prompt is not None:
            return prompt, len(token_ids)
    raise ConfigError(
        f"no text of exactly {len(prefix) + length} tokens was found in {ATTEMPTS} attempts; "
        "measure with --endpoint /v1/completions without --text"
    )


def _stable_words(tokenizer: Tokenizer) -> list[int]:
    """Return ids of words that stay the same tokens when they are repeated."""
    words: list[int] = []
    for token_id in range(FIRST_ID, tokenizer.vocab_size):
        ids = [token_id] * 3
        text = tokenizer.decode(ids)
        # The decoder may drop the very first blank, so the last word is looked at.
        if not _WORD.fullmatch(text[max(text.rfind(" "), 0) :]):
            continue
        if tokenizer.encode(text, add_special_tokens=False) == ids:
            words.append(token_id)
            if len(words) == ENOUGH_WORDS:
                break
    return words
