"""Checks what a platform declares before any kernel runs: facts, candidates, targets, budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe.platform import DeviceFacts, Platform
from hotshoe.slots import Candidate
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.base import Suite
from hotshoe_conformance.judge import ask
from hotshoe_conformance.place import Place
from hotshoe_conformance.report import Defect


def declaration_defects(
    platform: Platform,
    facts: DeviceFacts,
    offered: Mapping[str, Sequence[Candidate]],
    suites: Mapping[str, Suite] = SUITES,
) -> list[Defect]:
    """Return what is wrong, of a platform that has not been activated yet.

    Args:
        offered: Candidates by slot.
        suites: Where specifications come from to ask about.
    """
    found = [*_facts_defects(platform, facts)]
    for slot, candidates in offered.items():
        names = Counter(candidate.name for candidate in candidates)
        twins = [f"{slot}/{name}" for name, count in names.items() if count > 1]
        found += [Defect(f"{name}: two candidates have this name") for name in twins]
        for candidate in candidates:
            found += [Defect(f"{slot}/{candidate.name}: {d}") for d in _fields(candidate)]
            found += _foreign(suites[slot], candidate, facts)
    if not found and _touched(facts):
        found.append(Defect("the device was initialized by probing, facts or supports()"))
    return found


def _facts_defects(platform: Platform, facts: DeviceFacts) -> list[Defect]:
    problems = {
        f"facts() differ when asked again: {facts}": platform.facts() != facts,
        f"facts().platform is {facts.platform!r}, not {platform.name!r}": facts.platform
        != platform.name,
        "facts().memory_bytes is not positive": facts.memory_bytes <= 0,
        "facts().compute_units is not positive": facts.compute_units <= 0,
        "facts().features is not a frozenset of strings": not isinstance(facts.features, frozenset)
        or not all(isinstance(feature, str) for feature in facts.features),
    }
    return [Defect(text) for text, holds in problems.items() if holds]


def _fields(candidate: Candidate) -> list[str]:
    problems = {
        "its name is not a plain word": not candidate.name.replace("_", "a")
        .replace("-", "a")
        .isalnum(),
        f"batch_invariant is {candidate.batch_invariant!r}": not isinstance(
            candidate.batch_invariant, bool
        ),
        f"tolerance is {candidate.tolerance!r}, not a number from 0 to 1": not isinstance(
            candidate.tolerance, int | float
        )
        or not 0 <= candidate.tolerance <= 1,
    }
    return [text for text, holds in problems.items() if holds]


def _foreign(suite: Suite, candidate: Candidate, facts: DeviceFacts) -> list[Defect]:
    """Ask about specifications and a device that a candidate has never seen."""
    nowhere = DeviceFacts("elsewhere", "meta", "another device", "unknown", 1, 1)
    questions: list[tuple[Any, DeviceFacts]] = [
        (setup.spec, other) for setup in suite.grid(())[:3] for other in (facts, nowhere)
    ]
    found = []
    for spec, other in questions:
        _, defect = ask(candidate, spec, other)
        if defect:
            found.append(Defect(f"{suite.slot}/{candidate.name} on {other.arch}: {defect}"))
    return found[:1]


def _touched(facts: DeviceFacts) -> bool:
    return facts.device != "cpu" and bool(Place(facts.device).initialized())
