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

from hotshoe.errors import ConfigError
from hotshoe_speculation.lookup import Known, TokenArray, check_names, longest_end, whole_number

#: Longest n-gram that may be asked for; where so many tokens agree, more hardly tell more.
MAX_LENGTH = 64
DEFAULT_MAX = 4
DEFAULT_MIN = 1


def lengths_of(method: str, options: Mapping[str, Any]) -> tuple[int, int]:
    """Return the tokens of the shortest and the longest end that is looked up.

    Raises:
        ConfigError: An option is unknown or out of range.
    """
    check_names(method, options, ("prompt_lookup_max", "prompt_lookup_min"))
    longest = whole_number(options, "prompt_lookup_max", DEFAULT_MAX, 1, MAX_LENGTH)
    default = min(DEFAULT_MIN, longest)
    shortest = whole_number(options, "prompt_lookup_min", default, 1, MAX_LENGTH)
    if shortest > longest:
        raise ConfigError(
            f"speculative_config: prompt_lookup_min ({shortest}) exceeds "
            f"prompt_lookup_max ({longest})"
        )
    return shortest, longest


class NgramProposer:
    """See `hotshoe.speculation.Proposer`.

    Args:
        options: `prompt_lookup_max` and `prompt_lookup_min`, tokens of the longest and the shortest
            end that is looked up. Default: 4 and 1.

    Raises:
        ConfigError: An option is unknown or out of range.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._lengths = lengths_of("ngram", options)

    def follow(self) -> NgramFollower:
        """Start a sequence."""
        return NgramFollower(*self._lengths)


class NgramFollower:
    """Remembers a sequence's tokens.

    Args:
        shortest, longest: Tokens of an end that is looked up.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._known = Known()

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """Return the `limit` tokens that followed the same end before.

        Where the sequence itself ends sooner, they go on with those just proposed, as a repetition
        does whose period is shorter than the limit.
        """
        tokens = self._known.take(token_ids)
        start = self._find(tokens)
        if start is None:
            return []
        found = tokens[start : start + limit].tolist()
        period = len(found)
        return [found[i % period] for i in range(limit)]

    def _find(self, tokens: TokenArray) -> int | None:
        """Return the place behind the last earlier occurrence of the longest known end."""
        length, places = longest_end(tokens, tokens, self._longest)
        return int(places[-1]) if len(places) and length >= self._shortest else None
