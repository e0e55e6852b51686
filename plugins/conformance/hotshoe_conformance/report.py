"""What a run found, as data, and how it is printed for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hotshoe.cli.table import table
from hotshoe.slots.show import words_of

#: A slot's verdict, from the worst down; the last where nothing could be run here.
WRONG, NATIVE, REFUSED, REFERENCE = "wrong", "native", "refused", "reference"
UNTESTED = "untested"


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that is wrong.

    Attributes:
        what: In words, with the size of the error.
        spec: The failing specification, as text; empty where none is to blame.
        shape: What the inputs look like.
        repeat: The command that shows it again.
    """

    what: str
    spec: str = ""
    shape: str = ""
    repeat: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """How near a candidate comes to the device's limits on one case.

    Attributes:
        microseconds: Median time of a call.
        limit: "bandwidth" or "arithmetic", whichever bounds the case.
        share: Of that limit; above 1 where the data of a small case stays in caches, which a
            plain copy of a large piece of memory does not profit from.
    """

    spec: str
    shape: str
    microseconds: float
    limit: str
    share: float


@dataclass(slots=True)
class CandidateReport:
    """One candidate over all cases of its slot.

    Attributes:
        error: As a share of the tolerance.
        reasons: Why cases were refused, with their number.
        left_out: Why cases could not be run here, with their number.
    """

    name: str
    passed: int = 0
    refused: int = 0
    error: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    defects: list[Defect] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)

    @property
    def unproved(self) -> str:
        """Say why nothing is known of its results; "" where something is."""
        if self.passed or self.defects or self.name == REFERENCE:
            return ""
        reasons = "; ".join([*self.reasons, *self.left_out])
        count = self.refused + sum(self.left_out.values())
        return f"it ran none of {count} cases" + (f": {reasons}" if reasons else "")

    def refuse(self, reason: str) -> None:
        """Count a case that the candidate refused."""
        self.refused += 1
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def leave_out(self, count: int, reason: str) -> None:
        """Count cases that could not be run here."""
        self.left_out[reason] = self.left_out.get(reason, 0) + count


@dataclass(slots=True)
class SlotReport:
    """One slot: its verdict follows from its candidates'."""

    slot: str
    candidates: list[CandidateReport] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        own = [c for c in self.candidates if c.name != REFERENCE]
        if any(c.defects for c in self.candidates):
            return WRONG
        if any(c.passed for c in own):
            return NATIVE
        if not any(c.passed or c.refused for c in self.candidates):
            return UNTESTED
        return REFUSED if own else REFERENCE


@dataclass(slots=True)
class Report:
    """A platform's conformance.

    Attributes:
        checks: What is wrong, by what was looked at beside the slots; empty lists where nothing is.
        limits: What the device reaches in this run, by unit, such as "B/s".
        formats: What became of each weight format of the plugins, in words.
        left_out: What of the checks was not run, and why, with its number.
    """

    platform: str
    device: str
    seed: int
    slots: list[SlotReport] = field(default_factory=list)
    checks: dict[str, list[Defect]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    formats: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def defects(self) -> list[tuple[str, Defect]]:
        """Everything that is wrong, with where."""
        found = [(name, defect) for name, defects in self.checks.items() for defect in defects]
        return found + [
            (f"{slot.slot}/{candidate.name}", defect)
            for slot in self.slots
            for candidate in slot.candidates
            for defect in candidate.defects
        ]

    @property
    def unproved(self) -> dict[str, str]:
        """The candidates that ran no case, with why, so that the run says nothing of them."""
        return {
            f"{slot.slot}/{candidate.name}": candidate.unproved
            for slot in self.slots
            for candidate in slot.candidates
            if candidate.unproved
        }

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        verdicts: Mapping[str, str] = {slot.slot: slot.verdict for slot in self.slots}
        values = asdict(self)
        for slot in values["slots"]:
            slot["verdict"] = verdicts[slot["slot"]]
        return {**values, "conforms": not self.defects, "unproved": self.unproved}

    def as_text(self) -> str:
        """Return the report for people."""
        parts = [f"{self.platform}: {self.device}, seed {self.seed}, {self.seconds:.1f} s"]
        rows = [row for slot in self.slots for row in _slot_rows(slot)]
        header = ("slot", "verdict", "candidate", "passed", "refused", "left out", "worst error")
        parts.append(table(header, rows))
        checks = [(n, "wrong" if found else "passed") for n, found in self.checks.items()]
        parts.append(table(("check", "verdict"), checks))
        parts.append(table(("weight format", "outcome"), self.formats.items()) * bool(self.formats))
        parts += [self._shares(), self._left_out()]
        parts.append("\n".join(f"NOT PROVED {name}: {why}" for name, why in self.unproved.items()))
        parts += [_describe(where, defect) for where, defect in self.defects]
        count = len(self.defects)
        many = f"{count} defect{'s' * (count > 1)}"
        verdict = f"does not conform: {many}" if count else "conforms"
        if self.unproved and not count:
            verdict += f", but for what is not proved ({', '.join(self.unproved)})"
        parts.append(verdict + ", as far as it was run" * bool(self._left_out()))
        return "\n\n".join(part for part in parts if part)

    def _left_out(self) -> str:
        reasons: dict[tuple[str, str], int] = {}
        for slot in self.slots:
            for candidate in slot.candidates:
                for reason, count in candidate.left_out.items():
                    reasons[slot.slot, reason] = reasons.get((slot.slot, reason), 0) + count
        lines = [f"left out: {n} cases of {slot}: {why}" for (slot, why), n in reasons.items()]
        return "\n".join(lines + [f"left out: {n} {what}" for what, n in self.left_out.items()])

    def _shares(self) -> str:
        limits = [f"{value / 1e9:,.1f} G{unit}" for unit, value in self.limits.items()]
        rows = [
            (
                *(slot.slot, candidate.name, share.microseconds),
                *(f"{_percent(share.share)} of {share.limit}", share.shape),
                _distinct(share.spec, slot),
            )
            for slot in self.slots
            for candidate in slot.candidates
            for share in candidate.shares
        ]
        if not rows:
            return ""
        header = ("slot", "candidate", "µs", "share", "inputs", "specification")
        return f"limits measured: {', '.join(limits)}\n{table(header, rows)}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share <= 1 else "over 100%"


def _distinct(spec: str, slot: SlotReport) -> str:
    """Return the words of a specification that not all measured ones have."""
    others = [set(words_of(share.spec)) for c in slot.candidates for share in c.shares]
    common = set.intersection(*others)
    return " ".join(word for word in words_of(spec) if word not in common)


def _slot_rows(slot: SlotReport) -> Sequence[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for candidate in slot.candidates:
        first = not rows
        error = f"{candidate.error:.2f} of tolerance" if candidate.passed else ""
        rows.append(
            (
                *(slot.slot if first else "", slot.verdict if first else "", candidate.name),
                *(candidate.passed, candidate.refused, sum(candidate.left_out.values()), error),
            )
        )
    return rows


def _describe(where: str, defect: Defect) -> str:
    lines = [f"WRONG {where}: {defect.what}"]
    lines += [f"  specification: {defect.spec}"] * bool(defect.spec)
    lines += [f"  inputs: {defect.shape}"] * bool(defect.shape)
    lines += [f"  repeat: {defect.repeat}"] * bool(defect.repeat)
    return "\n".join(lines)
