"""Method `ngram`: a sequence goes on as it did where its last tokens came before.

Looks up the longest end of a sequence, of `prompt_lookup_max` tokens down to `prompt_lookup_min`,
that occurs in it earlier, and proposes the tokens that followed there last. Needs no second model,
and pays where output repeats input or itself: code, quotes, tables, summaries, JSON.

Source: prompt lookup decoding, Saxena 2023, after inference with reference, Yang et al. 2023,
arXiv:2304.04487.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotshoe.errors import ConfigError
from hotshoe.suggest import did_you_mean

#: Longest n-gram that may be asked for; where so many tokens agree, more hardly tell more.
MAX_LENGTH = 64
DEFAULT_MAX = 4
DEFAULT_MIN = 1
FIRST_CAPACITY = 256


class NgramProposer:
    """See `hotshoe.speculation.Proposer`.

    Args:
        options: `prompt_lookup_max` and `prompt_lookup_min`, tokens of the longest and the shortest
            end that is looked up. Default: 4 and 1.

    Raises:
        ConfigError: An option is unknown or out of range.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        known = ("prompt_lookup_max", "prompt_lookup_min")
        for name in options:
            if name not in known:
                raise ConfigError(
                    f"speculative_config: method ngram has no option {name!r}"
                    f"{did_you_mean(name, known)} (options: {', '.join(known)})"
                )
        longest = _length(options, "prompt_lookup_max", DEFAULT_MAX)
        default = min(DEFAULT_MIN, longest)
        self._lengths = (_length(options, "prompt_lookup_min", default), longest)
        if self._lengths[0] > longest:
            raise ConfigError(
                f"speculative_config: prompt_lookup_min ({self._lengths[0]}) exceeds "
                f"prompt_lookup_max ({longest})"
            )

    def follow(self) -> NgramFollower:
        """Start a sequence."""
        return NgramFollower(*self._lengths)


class NgramFollower:
    """Keeps a sequence's tokens as an array, four bytes each, so that a look-up is a few scans.

    Args:
        shortest, longest: Tokens of an end that is looked up.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._tokens: npt.NDArray[np.int32] = np.empty(FIRST_CAPACITY, np.int32)
        self._num_tokens = 0

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """Return the `limit` tokens that followed the same end before.

        Where the sequence itself ends sooner, they go on with those just proposed, as a repetition
        does whose period is shorter than the limit.
        """
        self._take(token_ids)
        start = self._find()
        if start is None:
            return []
        found = self._tokens[start : min(start + limit, self._num_tokens)].tolist()
        period = len(found)
        return [found[i % period] for i in range(limit)]

    def _take(self, token_ids: Sequence[int]) -> None:
        """Append what is new."""
        total = len(token_ids)
        if total > len(self._tokens):
            grown = np.empty(max(total, 2 * len(self._tokens)), np.int32)
            grown[: self._num_tokens] = self._tokens[: self._num_tokens]
            self._tokens = grown
        self._tokens[self._num_tokens : total] = token_ids[self._num_tokens :]
        self._num_tokens = total

    def _find(self) -> int | None:
        """Return the place behind the last earlier occurrence of the longest known end."""
        total = self._num_tokens
        tokens = self._tokens[:total]
        # Places behind which the end may have occurred: the token before them is the last one.
        places = np.flatnonzero(tokens[:-1] == tokens[-1]) + 1
        found: int | None = None
        for length in range(1, min(self._longest, total - 1) + 1):
            if length > 1:
                places = places[places >= length]
                places = places[tokens[places - length] == tokens[total - length]]
            if not len(places):
                break
            if length >= self._shortest:
                found = int(places[-1])
        return found


def _length(options: Mapping[str, Any], name: str, default: int) -> int:
    value = options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LENGTH:
        raise ConfigError(
            f"speculative_config: {name} must be a number from 1 to {MAX_LENGTH}, not {value!r}"
        )
    return value
