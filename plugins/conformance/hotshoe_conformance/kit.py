"""Runs the kit on a platform: its declarations, every candidate of every slot, whole models.

One runner for all slots; what differs between them is data in `cases`. Called by the command and
by the pytest plugin.
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, PluginError
from hotshoe.platform import DeviceFacts, Platform
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import choose_platform
from hotshoe.slots import REFERENCE, SLOTS, Candidate, KVLayout, Selector
from hotshoe.suggest import did_you_mean
from hotshoe_conformance import measure
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.base import Case, cases, clean
from hotshoe_conformance.declarations import declaration_defects
from hotshoe_conformance.judge import ask, judge
from hotshoe_conformance.report import CandidateReport, Defect, Report, SlotReport
from hotshoe_conformance.tokens import token_defects

NUM_RANDOM, NUM_RANDOM_QUICK = 40, 8
#: A candidate that fails more often than this has been understood.
MAX_DEFECTS = 3
#: Cases that want memory beyond 32-bit indices run where this many times as much is free.
MEMORY_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class Options:
    """What to run; the defaults run everything.

    Attributes:
        slot, candidate, case: Narrow the run to one of each.
        seed: Of random cases and of all values; None draws one.
        quick: Only small cases, and no measurements.
        measure: Time candidates against the device's limits.
        platform_options: As in the configuration.
        record: File that always holds the command which repeats the running case, for whoever
            finds this process dead.
    """

    slot: str | None = None
    candidate: str | None = None
    case: int | None = None
    seed: int | None = None
    quick: bool = False
    measure: bool = True
    platform_options: dict[str, Any] = field(default_factory=dict)
    record: Path | None = None


class Kit:
    """One platform under test, activated.

    Args:
        name: The platform's name.
        options: What to run.
        plugins: Default: those installed.

    Raises:
        UserError: The platform or a narrowed name does not exist.
    """

    def __init__(
        self, name: str, options: Options | None = None, plugins: PluginManager | None = None
    ) -> None:
        self.options = options or Options()
        self.plugins = plugins or PluginManager()
        self.seed = secrets.randbelow(10**6) if self.options.seed is None else self.options.seed
        self.platform = choose_platform(self.plugins, name)
        config = EngineConfig(
            platform=self.platform.name, platform_options=self.options.platform_options
        )
        self._host_threads = torch.get_num_threads()
        self.config = config.resolve_changes(self.platform.resolve(config))
        self.facts = self.platform.facts()
        self.by_slot = offered(self.platform, self.plugins, self.facts)
        self._check_names()
        self.undeclared = declaration_defects(self.platform, self.facts, self.by_slot)
        self.platform.activate(self.config)

    def _check_names(self) -> None:
        slot, name = self.options.slot, self.options.candidate
        if slot is not None and slot not in SLOTS:
            raise ConfigError(
                f"unknown slot {slot!r}{did_you_mean(slot, SLOTS)} (slots: {', '.join(SLOTS)})"
            )
        known = {c.name for found in self.by_slot.values() for c in found}
        if name is not None and name not in known:
            choices = ", ".join(sorted(known))
            raise ConfigError(f"no candidate {name!r}{did_you_mean(name, known)} ({choices})")

    @property
    def slots(self) -> list[str]:
        """The slots to run, all or the one asked for."""
        if self.options.slot is None and self.platform.create_worker(self.config) is not None:
            return []  # it has a worker of its own, which asks no slot
        return [s for s in SLOTS if self.options.slot in (None, s)]

    def run(self) -> Report:
        """Run everything that the options ask for."""
        begin = time.perf_counter()
        report = Report(self.platform.name, self.facts.name, self.seed)
        narrowed = self.options.slot is not None
        if not narrowed:
            report.checks["declarations"] = self.undeclared
        report.slots = [self.run_slot(slot) for slot in self.slots]
        if not narrowed:
            report.checks["greedy tokens of tiny models"] = self.run_tokens()
        if self.options.measure and not self.options.quick and self.options.case is None:
            self._measure(report)
        report.seconds = time.perf_counter() - begin
        return report

    def run_tokens(self) -> list[Defect]:
        """Let whole models write, here and on references."""
        return token_defects(self.platform.name, self.plugins, self.seed, self.options)

    def run_slot(self, slot: str) -> SlotReport:
        """Run all cases of a slot against all of its candidates."""
        report = SlotReport(slot)
        if slot not in SUITES:
            return report
        candidates = [c for c in self.by_slot[slot] if self.options.candidate in (None, c.name)]
        report.candidates = [CandidateReport(c.name) for c in candidates]
        for case in self._cases(slot):
            problem = cache(lambda case=case: case.problem(SUITES[slot]))
            expected = cache(lambda problem=problem: problem().expected())
            for candidate, found in zip(candidates, report.candidates, strict=True):
                if len(found.defects) < MAX_DEFECTS:
                    self._run_case(candidate, found, case, (problem, expected))
        return report

    def _run_case(
        self, candidate: Candidate, found: CandidateReport, case: Case, inputs: Any
    ) -> None:
        setup = case.setup
        if setup.bytes and MEMORY_FACTOR * setup.bytes > self._free_bytes():
            found.left_out += 1
            return
        if self.options.record is not None:
            self.options.record.write_text(self._repeat(case, candidate.name))
        outcome = judge(candidate, setup.spec, self.facts, *inputs, poison=not setup.bytes)
        if outcome.refused:
            found.refused += 1
            found.reasons[outcome.refused] = found.reasons.get(outcome.refused, 0) + 1
        elif outcome.defect:
            repeat = self._repeat(case, candidate.name)
            found.defects.append(
                Defect(outcome.defect, clean(setup.spec), clean(setup.shape), repeat)
            )
        else:
            found.passed += 1
        found.error = max(found.error, outcome.error)

    def _free_bytes(self) -> int:
        return self.platform.memory_budget(self.config).available_bytes

    def _repeat(self, case: Case, candidate: str) -> str:
        words = [
            *("hotshoe", "conformance", "--platform", self.platform.name, "--slot", case.slot),
            *("--candidate", candidate, "--case", str(case.index), "--seed", str(case.seed)),
        ]
        for name, value in self.options.platform_options.items():
            words += [f"--platform-options.{name}", str(value)]
        return shlex.join(words)

    def _cases(self, slot: str) -> Iterator[Case]:
        """Yield the cases to run. Indices do not depend on how many are asked for."""
        quick, only = self.options.quick, self.options.case
        count = NUM_RANDOM_QUICK if quick else NUM_RANDOM
        suite, layouts = SUITES[slot], self.layouts()
        for case in cases(suite, layouts, self.seed, max(count, 0 if only is None else only + 1)):
            if only is not None:
                if case.index == only:
                    yield case
                continue
            random = case.index >= len(suite.grid(layouts))
            if random or case.setup.quick or not quick:
                yield case

    def layouts(self) -> list[KVLayout]:
        """Return the cache layouts, other than the plain one, that attention declares here."""
        found: dict[KVLayout, None] = {}
        for candidate in self.by_slot["attention"]:
            for setup in SUITES["attention"].grid(()):
                layout = declared_layout(candidate, setup.spec, self.facts)
                if layout is not None and not ask(candidate, setup.spec, self.facts)[1]:
                    found[layout] = None
        return list(found)

    def _measure(self, report: Report) -> None:
        with torch.inference_mode():
            limits = measure.Limits.of(self.facts.device, self._host_threads)
            timed = [
                (found, timing)
                for slot in report.slots
                for found in slot.candidates
                if found.passed and not found.defects
                for timing in self._timings(slot.slot, found.name)
            ]
            limits = limits.raised_by(timing for _, timing in timed)
            for found, timing in timed:
                found.shares.append(limits.share(timing))
        report.limits = limits.as_mapping()

    def _timings(self, slot: str, name: str) -> Iterator[measure.Timing]:
        [candidate] = [c for c in self.by_slot[slot] if c.name == name]
        setups = SUITES[slot].bench(self.layouts())
        return measure.timings(SUITES[slot], setups, candidate, self.facts, self.seed)


def declared_layout(candidate: Candidate, spec: Any, facts: DeviceFacts) -> KVLayout | None:
    """Return the layout that an attention candidate says it reads, None where it does not say."""
    if candidate.layout is not None:
        return candidate.layout(spec, facts)
    layout = getattr(candidate.build, "layout", None)
    return layout if isinstance(layout, KVLayout) else None


def offered(
    platform: Platform, plugins: PluginManager, facts: DeviceFacts
) -> dict[str, Sequence[Candidate]]:
    """Return every slot's candidates, the reference last.

    Raises:
        PluginError: A platform or plugin offers something that no engine could take.
    """
    found = [
        *platform.candidates(),
        *plugins.sequence("hotshoe_candidates", platform=platform.name),
    ]
    Selector(SLOTS, found, facts)  # refuses unknown slots and duplicate names
    for candidate in found:
        if candidate.name == REFERENCE:
            raise PluginError(f"a candidate of slot {candidate.slot} may not be named {REFERENCE}")
    return {
        name: [
            *(c for c in found if c.slot == name),
            Candidate(name, REFERENCE, _accept_all, slot.reference),
        ]
        for name, slot in SLOTS.items()
    }


def _accept_all(spec: Any, facts: DeviceFacts) -> Any:
    from hotshoe.slots import accept

    return accept(0)
