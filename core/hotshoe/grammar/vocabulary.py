"""Hands a tokenizer's vocabulary over to grammar backends, as bytes.

The same table turns tokens into the text that a client gets, so a matcher reads what the client
reads, be the tokens byte-level, byte-fallback or pieces of words.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotshoe.grammar.backend import Vocabulary
from hotshoe.text.tokenizer import Tokenizer


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int, ending_ids: Iterable[int]) -> Vocabulary:
    """Return what each of `vocab_size` tokens adds to a text.

    Args:
        tokenizer: May know fewer or more tokens than that.
        vocab_size: Width of the logits.
        ending_ids: Tokens that end a text, of model and tokenizer together.
    """
    endings = tuple(sorted({i for i in ending_ids if i < vocab_size}))
    silent = tokenizer.special_token_ids.union(endings)
    make = tokenizer.pieces.make
    tokens = tuple(b"" if i in silent else make(i, first=False) or b"" for i in range(vocab_size))
    texts = tokenizer.special_token_texts.items()
    return Vocabulary(tokens, {text: i for i, text in texts if i < vocab_size}, endings)
