"""Options of drafts that every method of speculation has. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotshoe.errors import ConfigError
from hotshoe.types.trees import tree_of


def check_drafts(options: Mapping[str, Any] | None, most: int) -> None:
    """Check the options that every method of speculation has; a method checks its own.

    Args:
        most: Drafts of a request and step.

    Raises:
        ConfigError: A value is bad.
    """
    if not options:
        return
    method, number = options.get("method"), options.get("num_speculative_tokens")
    if not isinstance(method, str):
        raise ConfigError(
            f"speculative_config.method must name a method, such as ngram, not {method!r}"
        )
    fits = isinstance(number, int) and not isinstance(number, bool)
    if number is not None and not (fits and 1 <= number <= most):
        raise ConfigError(
            "speculative_config.num_speculative_tokens must be a number from 1 to "
            f"{most}, not {number!r}"
        )
    if not isinstance(options.get("adaptive", True), bool):
        raise ConfigError(
            "speculative_config.adaptive must be true, for drafts where they pay, or false, for "
            f"num_speculative_tokens at every step, not {options['adaptive']!r}"
        )
    tree_of(options)
