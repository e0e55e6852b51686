"""The interface of a proposer: how a sequence may go on, guessed on the host between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from hotshoe.scheduler import Request


class Follower(Protocol):
    """Guesses how one sequence goes on. It may remember what it has seen of it."""

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """Return tokens that may come next, in order.

        Args:
            token_ids: All known tokens, prompt first, at least one; at the next call there are more
                behind them. The list belongs to the engine and is only read.
            limit: Most tokens to return, at least 1.

        Returns:
            At most `limit` token ids of the model; none where there is no guess.
        """
        ...


@runtime_checkable
class LearningFollower(Follower, Protocol):
    """A follower whose proposer also learns from how sequences went on."""

    def learn(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Take in a sequence that has ended; nothing is asked afterwards.

        Args:
            token_ids: All of its tokens, prompt first, perhaps that alone.
            num_prompt_tokens: Tokens of the prompt.
        """
        ...


class Proposer(Protocol):
    """What hook `hotshoe_proposers` names: a class, made once for an engine."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Read the options.

        Args:
            options: Of `speculative_config`, without those of every method.

        Raises:
            ConfigError: An option is unknown or its value impossible; the message names it.
        """
        ...

    def follow(self) -> Follower:
        """Start a sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sequence whose tokens are all known.

    Attributes:
        limit: How many drafts it may have, at least one.
        made: Drafts that a head has made behind the step.
    """

    request: Request
    limit: int
    made: Sequence[int] = ()


class Drafter(Protocol):
    """What makes the drafts of all sequences at once; a proposer is asked through one, too."""

    def add(self, request: Request) -> None:
        """Begin to follow a request."""
        ...

    def discard(self, request: Request) -> None:
        """Forget a request that has ended."""
        ...

    def propose(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        """Return drafts for each sequence in order, none where there is no guess."""
        ...
