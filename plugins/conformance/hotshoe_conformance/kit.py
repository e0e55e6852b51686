"""Runs the kit on a platform: its declarations, every candidate of every slot, whole models.

One runner for all slots; what differs between them is data in `cases`. Called by the command and
by the pytest plugin.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch

from hotshoe.cli.parser import entry_text
from hotshoe.errors import ConfigError
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import blaming, choose_platform, facts_of, troubles
from hotshoe.slots import REFERENCE, Candidate, KVLayout, all_slots
from hotshoe.suggest import did_you_mean
from hotshoe_conformance import measure
from hotshoe_conformance.cases import suites_of
from hotshoe_conformance.cases.base import Case, Setup, cases, clean, quick_indices
from hotshoe_conformance.clock import Clock
from hotshoe_conformance.declarations import declaration_defects
from hotshoe_conformance.formats import format_timings, prove_formats
from hotshoe_conformance.judge import Outcome, ask, ask_outcome, hoard, judge
from hotshoe_conformance.rank import Job
from hotshoe_conformance.ranks import group_outcomes
from hotshoe_conformance.report import CandidateReport, Defect, Report, SlotReport
from hotshoe_conformance.subject import declared_layout, offered, resolved, why_alone
from hotshoe_conformance.tokens import token_defects

NUM_RANDOM, NUM_RANDOM_QUICK = 40, 8
#: A candidate that fails more often than this has been understood.
MAX_DEFECTS = 3
#: Cases that want memory beyond 32-bit indices run where this many times as much is free.
MEMORY_FACTOR = 1.25
#: Behind the slots: whole models, and weight formats.
WHOLE_CHECKS = 2

#: Is told of something before it begins; true leaves it out.
Late = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Options:
    """What to run; the defaults run everything.

    Attributes:
        slot, candidate, case: Narrow the run to one of each.
        seed: Of random cases and of all values; None draws one.
        quick: Only small cases, with one thread of PyTorch's, and no measurements.
        measure: Time candidates against the device's limits.
        platform_options: As in the configuration.
        time_limit_s: Start no case later; each slot has a fair share of what is left.
        record: File that always holds the command which repeats the running case, for whoever
            finds this process dead.
    """

    slot: str | None = None
    candidate: str | None = None
    case: int | None = None
    seed: int | None = None
    quick: bool = False
    measure: bool = True
    time_limit_s: float | None = None
    platform_options: dict[str, Any] = field(default_factory=dict)
    record: Path | None = None


class Kit:
    """One platform under test, activated.

    Args:
        name: The platform's name.
        options: What to run.
        plugins: Default: those installed.
        say: Is told now and then where a long run is.

    Raises:
        UserError: The platform or a narrowed name does not exist.
    """

    def __init__(
        self,
        name: str,
        options: Options | None = None,
        plugins: PluginManager | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.options = options or Options()
        self._clock = Clock(self.options.time_limit_s, say)
        self.plugins = plugins or PluginManager()
        self.seed = secrets.randbelow(10**6) if self.options.seed is None else self.options.seed
        self.platform = choose_platform(self.plugins, name)
        for trouble in troubles(self.plugins):
            say(trouble)
        self._host_threads = torch.get_num_threads()
        with blaming(self.platform.name):
            self.config = resolved(self.platform, self.options.platform_options)
            self.facts = facts_of(self.platform)
            self.records = all_slots(self.plugins)
            self.by_slot = offered(self.platform, self.plugins, self.facts)
        self._check_names()
        self.suites = suites_of(self.records)
        asked = {s: c for s, c in self.by_slot.items() if self.options.slot in (None, s)}
        self.undeclared = declaration_defects(self.platform, self.facts, asked, self.suites)
        with blaming(self.platform.name):
            dict(self.platform.activate(self.config))

    def _check_names(self) -> None:
        slot, name = self.options.slot, self.options.candidate
        if slot is not None and slot not in self.records:
            raise ConfigError(
                f"unknown slot {slot!r}{did_you_mean(slot, self.records)} "
                f"(slots: {', '.join(self.records)})"
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
        return [s for s in self.records if self.options.slot in (None, s)]

    def run(self) -> Report:
        """Run everything that the options ask for."""
        with one_thread() if self.options.quick else nullcontext():
            return self._run()

    def _run(self) -> Report:
        report = Report(self.platform.name, self.facts.name, self.seed)
        narrowed = self.options.slot is not None
        report.checks["declarations"] = self.undeclared
        after = 0 if narrowed else WHOLE_CHECKS
        for done, slot in enumerate(self.slots):
            self._clock.share_of(len(self.slots) - done + after)
            report.slots.append(self.run_slot(slot))
        if not narrowed:
            self._clock.share_of(WHOLE_CHECKS)
            self._clock.say("models")
            self._note(f"hotshoe conformance --platform {self.platform.name}, the models")
            late = partial(self._clock.late, report.left_out)
            report.checks["greedy tokens of tiny models"] = self.run_tokens(late)
            self._clock.share_of(1)
            self._run_formats(report, late)
        if self.options.measure and not self.options.quick and self.options.case is None:
            self._note(f"hotshoe conformance --platform {self.platform.name}, the measurements")
            self._measure(report)
        report.seconds = self._clock.seconds
        return report

    def run_tokens(self, late: Late = lambda what: False) -> list[Defect]:
        """Let whole models write, here and on references, but for runs that are too late."""
        return token_defects(self.platform.name, self.plugins, self.seed, self.options, late)

    def _run_formats(self, report: Report, late: Late) -> None:
        """Run what plugins quantize, where candidates of the platform multiply."""
        if "linear" not in self.slots:
            return
        self._clock.say("weight formats")
        self._note(f"hotshoe conformance --platform {self.platform.name}, the weight formats")
        asked = (self.by_slot["linear"], self.facts, self.seed)
        found = prove_formats(self.plugins, *asked, late)
        report.checks["weight formats"] = found.defects
        report.formats = found.outcomes

    def run_slot(self, slot: str) -> SlotReport:
        """Run all cases of a slot against all of its candidates."""
        candidates = [c for c in self.by_slot[slot] if self.options.candidate in (None, c.name)]
        report = SlotReport(slot, [CandidateReport(c.name) for c in candidates])
        pairs = list(zip(candidates, report.candidates, strict=True))
        if self.suites[slot].among_ranks:
            for candidate, found in pairs:
                self._run_among_ranks(candidate, found)
            return report
        for case in self._cases(slot):
            problem = cache(lambda case=case: case.problem(self.suites[slot]))
            expected = cache(lambda problem=problem: problem().expected())
            for candidate, found in pairs:
                if self._clock.over:
                    found.leave_out(1, self._clock.reason)
                elif len(found.defects) < MAX_DEFECTS:
                    self._clock.say(f"{slot}/{candidate.name}, case {case.index}")
                    self._run_case(candidate, found, case, (problem, expected))
        return report

    def _run_case(
        self, candidate: Candidate, found: CandidateReport, case: Case, inputs: Any
    ) -> None:
        setup = case.setup
        if setup.bytes and candidate.name == REFERENCE:
            return  # what it writes down in between would take many times the memory
        if setup.bytes and MEMORY_FACTOR * setup.bytes > self._free_bytes():
            found.leave_out(1, "it needs more memory than is free")
            return
        self._note(self._repeat(case, candidate.name))
        outcome = judge(candidate, setup.spec, self.facts, *inputs, poison=not setup.bytes)
        if not (found.passed or outcome.defect or outcome.refused):
            problem, _ = inputs
            defect = hoard(candidate, setup.spec, self.facts, problem())
            outcome = replace(outcome, defect=defect)
        self._book(found, case, outcome)

    def _note(self, repeat: str) -> None:
        """Leave behind what runs now, for whoever finds that it does not end well."""
        if self.options.record is not None:
            self.options.record.write_text(repeat)

    def _book(self, found: CandidateReport, case: Case, outcome: Outcome) -> None:
        setup = case.setup
        if outcome.left_out:
            found.leave_out(1, outcome.left_out)
        elif outcome.refused:
            found.refuse(outcome.refused)
        elif outcome.defect:
            repeat = self._repeat(case, found.name)
            found.defects.append(
                Defect(outcome.defect, clean(setup.spec), clean(setup.shape), repeat)
            )
        else:
            found.passed += 1
        found.error = max(found.error, outcome.error)

    def _run_among_ranks(self, candidate: Candidate, found: CandidateReport) -> None:
        accepted = []
        for case in self._cases(candidate.slot):
            outcome = ask_outcome(candidate, case.setup.spec, self.facts)
            if outcome is None:
                accepted.append(case)
            elif len(found.defects) < MAX_DEFECTS:
                self._book(found, case, outcome)
        subject = (self.platform.name, self.options.platform_options)
        why_alone_here = cache(lambda size: why_alone(self.plugins, *subject, size))
        outcomes = group_outcomes(
            Job(*subject, candidate.name, seed=self.seed),
            accepted,
            self.platform.asynchronous,
            MAX_DEFECTS - len(found.defects),
            lambda size: self._clock.reason if self._clock.over else why_alone_here(size),
            lambda case: self._note(self._repeat(case, candidate.name)),
        )
        for case, outcome in outcomes:
            self._clock.say(f"{candidate.slot}/{candidate.name}, case {case.index}")
            self._book(found, case, outcome)

    def _free_bytes(self) -> int:
        with blaming(self.platform.name):
            return self.platform.memory_budget(self.config).available_bytes

    def _repeat(self, case: Case, candidate: str) -> str:
        words = [
            *("hotshoe", "conformance", "--platform", self.platform.name, "--slot", case.slot),
            *("--candidate", candidate, "--case", str(case.index), "--seed", str(case.seed)),
        ]
        for name, value in self.options.platform_options.items():
            words += [f"--platform-options.{name}", entry_text(value)]
        return shlex.join(words)

    def _cases(self, slot: str) -> list[Case]:
        """Return the cases to run. Indices do not depend on how many are asked for."""
        suite, only = self.suites[slot], self.options.case
        fixed = suite.grid(self.layouts)
        if only is not None:
            wanted = {only}
        elif self.options.quick:
            wanted = quick_indices(fixed, self.seed) | _following(fixed, NUM_RANDOM_QUICK)
        else:
            wanted = {*range(len(fixed))} | _following(fixed, NUM_RANDOM)
        return list(cases(suite, self.layouts, self.seed, wanted))

    @cached_property
    def layouts(self) -> list[KVLayout]:
        """The cache layouts, other than the plain one, that attention declares here.

        One that raises is no layout here, and a defect of each case of attention.
        """
        found: dict[KVLayout, None] = {}
        for candidate in self.by_slot["attention"]:
            for setup in self.suites["attention"].grid(()):
                layout = None
                with suppress(Exception):
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
        suite = self.suites[slot]
        setups = measure.timed_setups(suite, self.layouts, candidate, self.facts)
        yield from measure.timings(suite, setups, candidate, self.facts, self.seed)
        if slot == "linear" and name != REFERENCE:
            yield from format_timings(self.plugins, candidate, self.facts, self.seed)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch compute in one thread: small cases are done before a second one has woken, and
    on a busy machine the first would wait for it, 25 times as long in all."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _following(fixed: Sequence[Setup], count: int) -> set[int]:
    """Return the indices of random cases, which follow the fixed ones."""
    return {*range(len(fixed), len(fixed) + count)}
