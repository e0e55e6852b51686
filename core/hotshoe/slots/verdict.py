"""Verdicts and decisions: what candidates answer to a specification. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A candidate's answer to a specification: a score, or a refusal with its reason.

    `defect` marks a refusal that core gave in the candidate's name: it raised, or could not build
    what it had accepted. Start-up prints such.
    """

    score: int | None
    reason: str = ""
    defect: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.score, int | None):
            raise TypeError(f"Verdict.score is of type int, or None, not {self.score!r}")

    @property
    def accepted(self) -> bool:
        """Whether the candidate takes the specification."""
        return self.score is not None


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen for one specification, and every other candidate's verdict."""

    slot: str
    spec: Any
    chosen: str
    score: int
    reason: str
    others: tuple[tuple[str, Verdict], ...]

    @property
    def native(self) -> bool:
        """False when the plain reference implementation serves this specification."""
        return self.chosen != REFERENCE


def accept(score: int, reason: str = "") -> Verdict:
    """Say yes. Scores compare within one slot; the reference scores 0."""
    return Verdict(score, reason)


def refuse(reason: str) -> Verdict:
    """Say no, with the reason that a user will read.

    Raises:
        ValueError: There is no reason.
    """
    if not reason.strip():
        raise ValueError("a refusal says why; this one has no reason")
    return Verdict(None, reason)


def accept_unless(refusals: Mapping[str, bool], score: int, reason: str = "") -> Verdict:
    """Refuse for the first of the reasons that holds, else accept."""
    refusal = next((text for text, holds in refusals.items() if holds), None)
    return accept(score, reason) if refusal is None else refuse(refusal)
