"""The interfaces of proposers: how a sequence may go on, guessed on the host between two steps, or
on the device behind a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hotshoe.scheduler import Request

if TYPE_CHECKING:
    from torch import Tensor


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


@runtime_checkable
class DeviceProposer(Protocol):
    """What hook `hotshoe_proposers` may name instead: a class that has `search`.

    It is made for the engine, which reads its options, and once for each worker.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """See `Proposer`."""
        ...

    def search(self, tokens: Tensor, lengths: Tensor, limit: int) -> Tensor:
        """Return tokens that may come next in each of several sequences, in order.

        Called behind a step, and again in the start, when memory is measured. It must not wait for
        the device.

        Args:
            tokens: [n, width] int32, all known tokens of each, prompt first; behind them anything.
                They are only read.
            lengths: [n] int64, how many are known, 1 to width.
            limit: Most tokens to return.

        Returns:
            [n, limit] int32, token ids of the model; -1 where there is no guess, and behind that.
        """
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
