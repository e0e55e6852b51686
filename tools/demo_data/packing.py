"""Packs token streams into rows of equal length with a mask of what is learned.

Text is one long stream cut into rows; conversations are placed whole, one after another, and the
rest of a row is padding.  `<|endoftext|>` (id `END`) ends every document, so the trainer finds the
borders in the tokens themselves.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from demo_data.chat import segments
from demo_data.mixture import conversation
from demo_data.tokenizer import END_OF_TEXT
from demo_data.words import World

Tokens = NDArray[np.uint16]
Mask = NDArray[np.bool_]
_BATCH = 256


@dataclass(frozen=True)
class Rows:
    """Rows of tokens, `[num_rows, length]`, and which of them are learned, same shape."""

    tokens: Tokens
    learned: Mask


def text_rows(stream: Tokens, length: int) -> Rows:
    """Cut a text stream into rows that overlap by one token; everything is learned."""
    count = (len(stream) - 1) // (length - 1)
    starts = np.arange(count)[:, None] * (length - 1)
    tokens = stream[starts + np.arange(length)[None, :]]
    return Rows(tokens, np.ones_like(tokens, dtype=np.bool_))


def encoded_conversations(
    tokenizer: Tokenizer, vocabulary: Sequence[str], seed: int
) -> Iterator[tuple[list[int], list[bool]]]:
    """Yield endless training conversations as (tokens, learned), each ended by `END_OF_TEXT`."""
    rng = random.Random(seed)
    end = tokenizer.token_to_id(END_OF_TEXT)
    while True:
        rendered = [segments(conversation(World(rng, vocabulary))) for _ in range(_BATCH)]
        flat = [text for pieces in rendered for text, _ in pieces]
        encoded = iter(tokenizer.encode_batch_fast(flat))
        for pieces in rendered:
            tokens: list[int] = []
            learned: list[bool] = []
            for _, is_learned in pieces:
                ids = next(encoded).ids
                tokens += ids
                learned += [is_learned] * len(ids)
            yield [*tokens, end], [*learned, False]


def chat_rows(
    tokenizer: Tokenizer, vocabulary: Sequence[str], seed: int, count: int, length: int
) -> Rows:
    """Fill `count` rows with the conversations of one seed; too long ones are left out."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokens = np.full((count, length), end, dtype=np.uint16)
    mask = np.zeros((count, length), dtype=np.bool_)
    source = encoded_conversations(tokenizer, vocabulary, seed)
    row, used = 0, 0
    while row < count:
        ids, learned = next(source)
        if len(ids) > length:
            continue
        if used + len(ids) > length:
            row, used = row + 1, 0
            if row == count:
                break
        tokens[row, used : used + len(ids)] = ids
        mask[row, used : used + len(ids)] = learned
        used += len(ids)
    return Rows(tokens, mask)
