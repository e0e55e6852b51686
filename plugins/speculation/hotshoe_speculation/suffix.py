"""Method `suffix`: a sequence goes on as most of the texts did that came to the same end.

Looks up the longest known end of a sequence, in itself and in answers that the engine has finished,
and follows what came next there most often. It proposes more behind a long end than behind a short
one, and stops where the texts no longer agree. Method `auto` is this one with its defaults.

Source: suffix decoding, Oliaro et al. 2024, arXiv:2411.04975, whose suffix trees are scans of one
array here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotshoe.errors import ConfigError
from hotshoe_speculation.lookup import (
    Known,
    TokenArray,
    check_names,
    longest_end,
    whole_number,
)

DEPTH, FACTOR = "suffix_decoding_max_tree_depth", "suffix_decoding_max_spec_factor"
PROBABILITY, CACHED = "suffix_decoding_min_token_prob", "suffix_decoding_max_cached_tokens"
MAX_DEPTH = 64
#: Four bytes each; a look-up scans them all.
MAX_CACHED = 2**22
#: Latest occurrences that have a say; more cost time and tell little.
MAX_VOICES = 32
#: Tokens of the prompt that are kept before an answer, so that its beginning can be found.
LEAD = 8
NO_TOKEN = -1


class SuffixProposer:
    """See `hotshoe.speculation.Proposer`.

    Args:
        options: `suffix_decoding_max_tree_depth`, tokens of the longest end that is looked up
            (24); `suffix_decoding_max_spec_factor`, most drafts by token of the end (1.0);
            `suffix_decoding_min_token_prob`, share of the texts that must agree with all drafts so
            far (0.1); `suffix_decoding_max_cached_tokens`, tokens of finished answers that are
            kept, 0 for none (262,144).

    Raises:
        ConfigError: An option is unknown or out of range.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        check_names("suffix", options, (DEPTH, FACTOR, PROBABILITY, CACHED))
        self.depth = whole_number(options, DEPTH, 24, 1, MAX_DEPTH)
        self.factor = _fraction(options, FACTOR, 1.0, MAX_DEPTH)
        self.probability = _fraction(options, PROBABILITY, 0.1, 1.0)
        self.answers = Answers(whole_number(options, CACHED, 2**18, 0, MAX_CACHED))

    def follow(self) -> SuffixFollower:
        """Start a sequence."""
        return SuffixFollower(self)


class Answers:
    """The latest finished answers, one behind the other in a ring, with no token between them.

    Args:
        capacity: Tokens.
    """

    def __init__(self, capacity: int) -> None:
        self._ring: TokenArray = np.full(capacity + 1, NO_TOKEN, np.int32)
        self._next = self._filled = 0

    @property
    def text(self) -> TokenArray:
        """[n] tokens; the last one is none."""
        return self._ring[: self._filled + 1]

    def add(self, tokens: Sequence[int]) -> None:
        """Keep an answer in place of the oldest ones; of one that is too long, keep the end."""
        capacity = len(self._ring) - 1
        tokens = tokens[max(0, len(tokens) + 1 - capacity) :]
        if not tokens or not capacity:
            return
        if self._next + len(tokens) + 1 > capacity:
            self._ring[self._next :] = NO_TOKEN
            self._next = 0
        end = self._next + len(tokens)
        self._ring[self._next : end] = tokens
        self._ring[end] = NO_TOKEN
        self._next = end + 1
        self._filled = max(self._filled, self._next)


class SuffixFollower:
    """Remembers a sequence's tokens, and gives its answer to the others when it has ended."""

    def __init__(self, proposer: SuffixProposer) -> None:
        self._proposer = proposer
        self._known = Known()

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """Return what followed the longest known end; of equal ends the sequence's own counts."""
        ours, tokens = self._proposer, self._known.take(token_ids)
        text, (length, places) = tokens, longest_end(tokens, tokens, ours.depth)
        if length < ours.depth:
            others = longest_end(ours.answers.text, tokens, ours.depth)
            if others[0] > length:
                text, (length, places) = ours.answers.text, others
        limit = min(limit, int(length * ours.factor))
        if limit < 1:
            return []
        places = places[-MAX_VOICES:]
        # What goes on beyond the end repeats what has just been proposed.
        steps = places[:, None] + np.arange(limit) % (len(text) - places)[:, None]
        return _agreed(text[steps], ours.probability)

    def learn(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Keep the answer of a sequence that has ended."""
        if len(token_ids) > num_prompt_tokens:
            self._proposer.answers.add(token_ids[max(0, num_prompt_tokens - LEAD) :])


def _agreed(voices: TokenArray, probability: float) -> list[int]:
    """Follow the most frequent token place by place; of equally frequent ones, the latest.

    Args:
        voices: [texts, places] how texts went on, the latest one last.
        probability: Share of all texts that must agree with all tokens so far.
    """
    agreed: list[int] = []
    needed = probability * len(voices)
    texts = voices[::-1].tolist()
    for place in range(voices.shape[1]):
        column = [text[place] for text in texts]
        token, count = column[0], len(column)
        if column.count(token) < count:
            [(token, count)] = Counter(column).most_common(1)
        if token == NO_TOKEN or count < needed:
            break
        agreed.append(token)
        if count < len(column):
            texts = [text for text in texts if text[place] == token]
    return agreed


def _fraction(options: Mapping[str, Any], name: str, default: float, high: float) -> float:
    value = options.get(name, default)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= high:
        raise ConfigError(
            f"speculative_config: {name} must be above 0 and at most {high:g}, not {value!r}"
        )
    return float(value)
