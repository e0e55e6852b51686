"""Finds where the end of a sequence occurred before. Shared by the methods that look text up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotshoe.errors import ConfigError
from hotshoe.suggest import did_you_mean

TokenArray: TypeAlias = npt.NDArray[np.int32]
Places: TypeAlias = npt.NDArray[np.intp]
FIRST_CAPACITY = 256
#: So many places are compared with all tokens of an end at once.
FEW = 64


class Known:
    """A sequence's tokens as an array, four bytes each, so that a look-up is a few scans."""

    def __init__(self) -> None:
        self._tokens: TokenArray = np.empty(FIRST_CAPACITY, np.int32)
        self._num_tokens = 0

    def take(self, token_ids: Sequence[int]) -> TokenArray:
        """Append what is new of all known tokens; return them all, [n], until the next call."""
        total = len(token_ids)
        if total > len(self._tokens):
            grown = np.empty(max(total, 2 * len(self._tokens)), np.int32)
            grown[: self._num_tokens] = self._tokens[: self._num_tokens]
            self._tokens = grown
        self._tokens[self._num_tokens : total] = token_ids[self._num_tokens :]
        self._num_tokens = total
        return self._tokens[:total]


def longest_end(text: TokenArray, end: TokenArray, longest: int) -> tuple[int, Places]:
    """Find the longest end, of 1 token up to `longest`, that occurs.

    Args:
        text: [n] tokens.
        end: [m] tokens, m at least 1; may be `text` itself, whose own end does not count.
        longest: Tokens of the longest end.

    Returns:
        Its length, and the places behind its occurrences, ascending, all below n. 0 and no place
        where not even the last token occurs.
    """
    places, most = np.flatnonzero(text[:-1] == end[-1]) + 1, min(longest, len(end))
    length = min(1, len(places))
    while len(places) > FEW and length < most:
        longer = places[places > length]
        longer = longer[text[longer - length - 1] == end[-length - 1]]
        if not len(longer):
            return length, places
        places, length = longer, length + 1
    if not len(places) or length == most:
        return length, places
    back = np.arange(length + 1, most + 1)
    before = places[:, None] - back
    differ = (text[np.maximum(before, 0)] != end[-back]) | (before < 0)
    more = np.where(differ.any(1), differ.argmax(1), len(back))
    best = int(more.max())
    return length + best, places[more == best]


def check_names(method: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse options that a method does not have.

    Raises:
        ConfigError: An option is unknown.
    """
    for name in options:
        if name not in known:
            raise ConfigError(
                f"speculative_config: method {method} has no option {name!r}"
                f"{did_you_mean(name, known)} (options: {', '.join(known)})"
            )


def whole_number(options: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    """Return an option that counts.

    Raises:
        ConfigError: It is no whole number from `low` to `high`.
    """
    value = options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(
            f"speculative_config: {name} must be a number from {low} to {high}, not {value!r}"
        )
    return value
