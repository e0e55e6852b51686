"""The interface of a grammar backend: refuse, compile, match, and fill masks.

A backend library knows bytes; it never hears of prompts, end-of-sequence tokens or requests. Core
adds the tokens that may end a text to the masks itself, exactly where a text may end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hotshoe.types import GrammarSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """What each token adds to a text.

    Attributes:
        tokens: Bytes by token id, as many as the logits are wide; empty for tokens that are not
            text: special ones, those that end a text, gaps and padding.
        special: Ids of special tokens by their content, such as {"<|python_tag|>": 128010}.
        ending_ids: Tokens that end a text.
    """

    tokens: tuple[bytes, ...]
    special: Mapping[str, int]
    ending_ids: tuple[int, ...]

    @property
    def num_words(self) -> int:
        """32-bit words of a mask."""
        return -(-len(self.tokens) // 32)


class Matcher(Protocol):
    """Where one text stands in a grammar."""

    def accept(self, token_id: int) -> bool:
        """Go on by a token; False if the grammar does not allow it, after which it is of no use."""
        ...

    def may_end(self) -> bool:
        """Tell whether the text so far is complete."""
        ...

    def failure(self) -> str | None:
        """Say why this matcher cannot go on, such as a limit of its library; None if it can."""
        ...


@runtime_checkable
class ForkingMatcher(Protocol):
    """A matcher that can be tried out; requests of others have no drafts."""

    def fork(self) -> Matcher:
        """Return a matcher that stands at the same place, and goes its own way from there."""
        ...


class CompiledGrammar(Protocol):
    """A grammar ready for matching; shared between requests, so it never changes.

    Attributes:
        num_bytes: About the memory it takes, for the cache.
    """

    num_bytes: int

    def matcher(self) -> Matcher:
        """Start a text."""
        ...


@runtime_checkable
class JudgingGrammar(Protocol):
    """A compiled grammar that may allow more than was asked for."""

    def objection(self, text: bytes) -> str | None:
        """Say why a finished text does not follow what was asked for; None if it does.

        Called between two steps; its work is bounded.
        """
        ...


class GrammarCompiler(Protocol):
    """A backend bound to a vocabulary."""

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Compile a grammar that was not refused. Called from several threads.

        Raises:
            RequestError: It is malformed, or too large for the backend's limits.
        """
        ...

    def fill(self, matchers: Sequence[Matcher], masks: npt.NDArray[np.int32]) -> None:
        """Write which tokens may come next.

        Args:
            matchers: n of this compiler's.
            masks: [n, num_words], contiguous; every word is written, as in `StepPlan.masks`.
                Bits of ending tokens may have any value.
        """
        ...


class GrammarBackend(Protocol):
    """What hook `hotshoe_grammars` names: a class without arguments, cheap to make."""

    def missing(self) -> str | None:
        """Say what must be installed for this backend; None if nothing."""
        ...

    def refusal(self, spec: GrammarSpec) -> str | None:
        """Say which feature of a grammar is not supported, by name; None if it can be served.

        Needs no vocabulary and takes time linear in the grammar, as it is asked between two steps.

        Raises:
            RequestError: The grammar is malformed for every backend, such as text that is not JSON.
        """
        ...

    def open(self, vocabulary: Vocabulary) -> GrammarCompiler:
        """Prepare for a vocabulary. Called once, off the step path."""
        ...
