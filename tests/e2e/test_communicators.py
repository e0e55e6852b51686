"""The kit's communicator cases for every communicator that runs here, among three ranks.

The ranks are threads of this process, so that three have room on any machine; among processes, and
with one that dies, `tests/conformance` runs the same cases.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotshoe.platform import DeviceFacts
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import candidates_of, choose_platform
from hotshoe.slots import SLOTS, Candidate, CommunicatorSpec, accept
from hotshoe_conformance.cases.base import Case, cases
from hotshoe_conformance.cases.communicator import DIES, SUITE
from hotshoe_conformance.rank import Member
from hotshoe_conformance.ranks import joined
from hotshoe_triton.communicator import build_with

SIZE, SEED, NUM_RANDOM = 3, 7, 15
HOST = DeviceFacts("host", "cpu", "a test's device", "any", 1 << 30, 1)
#: The last is what GPU platforms use over their vendors' libraries, here over gloo.
BUILDS = {"reference": SLOTS[SUITE.slot].reference, "process_group": build_with("gloo")}


def communicator(name: str) -> tuple[Candidate, DeviceFacts]:
    """Return a candidate and the device that it is for."""
    if name in BUILDS:
        return Candidate(SUITE.slot, name, lambda s, f: accept(0), BUILDS[name]), HOST
    plugins = PluginManager()
    platform = choose_platform(plugins, "cpu")
    [found] = [
        c for c in candidates_of(platform, plugins) if (c.slot, c.name) == (SUITE.slot, name)
    ]
    return found, platform.facts()


def cases_here(whole: bool) -> list[Case]:
    """Return all, or a third, another one each time, without the one that ends this process."""
    count = len(SUITE.grid(())) + NUM_RANDOM
    found = [c for c in cases(SUITE, (), SEED, range(count)) if c.setup.spec.size == SIZE]
    assert len(found) > len(SUITE.grid(())) / 2
    found = [case for case in found if case.setup.shape.verb != DIES]
    return found if whole else random.sample(found, len(found) // 3)


@pytest.mark.parametrize("name", ["shared_memory", *BUILDS])
@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["third", "all"]
)
def test_every_case(name: str, whole: bool, tmp_path: Path) -> None:
    candidate, facts = communicator(name)
    members = [Member(candidate, CommunicatorSpec(SIZE), facts, r, tmp_path) for r in range(SIZE)]
    with ThreadPoolExecutor(SIZE) as pool:
        for case in cases_here(whole):
            answers = list(pool.map(lambda m, case=case: m.answer(case, poison=False), members))
            assert joined(answers).defect == "", case.setup
        list(pool.map(Member.close, members))
