"""Bad-word strings as the token sequences that spell them.

A word is tokenized differently at the start of a text, after a space and within a line; all of
these sequences are forbidden. The sampler gets the result; called by front ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotshoe.text.tokenizer import Tokenizer

_ANCHOR = "\n"


def bad_word_token_ids(tokenizer: Tokenizer, words: Iterable[str]) -> list[tuple[int, ...]]:
    """Return the distinct token sequences of all words, with and without a leading space."""
    anchor = tokenizer.encode(_ANCHOR, add_special_tokens=False)
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, f" {word}"):
            at_start = tokenizer.encode(text, add_special_tokens=False)
            within = tokenizer.encode(_ANCHOR + text, add_special_tokens=False)
            found[tuple(at_start)] = None
            # Only where the anchor's tokens are separate does the rest spell the word alone.
            if anchor and within[: len(anchor)] == anchor:
                found[tuple(within[len(anchor) :])] = None
    return [ids for ids in found if ids]
