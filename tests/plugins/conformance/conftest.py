"""Runs a candidate of the test's own through the kit."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import hookimpl
from hotshoe.plugins.hookspecs import HOOK_API
from hotshoe.plugins.manager import EntryPoint, PluginManager, installed_entry_points
from hotshoe.slots import SLOTS, Candidate, accept, refuse
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.base import HOST, cases
from hotshoe_conformance.host import Host
from hotshoe_conformance.judge import Outcome, judge

NUM_RANDOM = 6


def yes(spec: Any, facts: Any) -> Any:
    return accept(10)


def unquantized(spec: Any, facts: Any) -> Any:
    """Accept what has a plain result."""
    if getattr(spec, "quant", None) is not None:
        return refuse("only plain results")
    return accept(10)


@pytest.fixture(scope="session")
def reference() -> Callable[..., Any]:
    """Build core's reference of a slot."""
    return lambda slot, spec: resolve_lazy(SLOTS[slot].reference)(spec, HOST)


@pytest.fixture(scope="session")
def run() -> Callable[..., Iterator[Outcome]]:
    """Judge a candidate on the quick cases of a slot and some random ones."""

    def run(slot: str, build: Any, seed: int = 1, **fields: Any) -> Iterator[Outcome]:
        candidate = Candidate(slot, "mine", fields.pop("supports", unquantized), build, **fields)
        suite = SUITES[slot]
        num_fixed = len(suite.grid(()))
        for case in cases(suite, (), seed, range(num_fixed + NUM_RANDOM)):
            if not (case.setup.quick or case.index >= num_fixed):
                continue
            problem = case.problem(suite)
            yield judge(candidate, case.setup.spec, HOST, lambda p=problem: p, problem.expected)

    return run


@pytest.fixture(scope="session")
def defects(run) -> Callable[..., list[str]]:
    """As `run`, but only what is wrong."""
    return lambda *args, **kwargs: [o.defect for o in run(*args, **kwargs) if o.defect]


@pytest.fixture(scope="session")
def finds(run) -> Callable[..., bool]:
    """Whether anything is wrong; cases behind the first that shows it are not run."""
    return lambda *args, **kwargs: any(o.defect for o in run(*args, **kwargs))


@pytest.fixture(scope="session")
def installed() -> Callable[..., PluginManager]:
    """Install a platform `mine` that offers the given candidates."""

    def install(*candidates: Candidate, **attributes: Any) -> PluginManager:
        class Mine(Host):
            name = "mine"

            def facts(self) -> Any:
                from dataclasses import replace

                return replace(super().facts(), platform="mine")

            def candidates(self) -> Sequence[Candidate]:
                return candidates

        for name, value in attributes.items():
            setattr(Mine, name, value)

        class Plugin:
            HOTSHOE_HOOK_API = HOOK_API

            @hookimpl
            def hotshoe_platforms(self) -> dict[str, Any]:
                return {"mine": Mine}

        return PluginManager([*installed_entry_points(), EntryPoint("mine", "tests", "0", Plugin)])

    return install


@pytest.fixture(scope="session")
def offer() -> Callable[..., Candidate]:
    """Make a candidate that accepts everything."""
    return partial(_offer)


def _offer(slot: str, build: Any, supports: Any = yes, **fields: Any) -> Candidate:
    return Candidate(slot, "mine", supports, build, **fields)
