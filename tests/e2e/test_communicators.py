"""The kit's communicator cases for every communicator that runs here, among three ranks.

The ranks are threads of this process, so that three have room on any machine; among processes, and
with one that dies, `tests/conformance` runs the same cases.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotshoe.platform import DeviceFacts
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import choose_platform
from hotshoe.slots import SLOTS, Candidate, CommunicatorSpec, accept
from hotshoe_conformance.cases.base import Case, cases
from hotshoe_conformance.cases.communicator import DIES, SUITE
from hotshoe_conformance.rank import Member
from hotshoe_conformance.ranks import joined
from hotshoe_triton.communicator import build_with

SIZE, SEED, NUM_RANDOM = 3, 7, 60
HOST = DeviceFacts("host", "cpu", "a test's device", "any", 1 << 30, 1)


def candidates() -> list[tuple[Candidate, DeviceFacts]]:
    platform = choose_platform(PluginManager(), "cpu")
    own = [c for c in platform.candidates() if c.slot == SUITE.slot]
    plain = {"reference": SLOTS[SUITE.slot].reference, "process group": build_with("gloo")}
    made = [Candidate(SUITE.slot, n, lambda s, f: accept(0), build) for n, build in plain.items()]
    return [*((c, platform.facts()) for c in own), *((c, HOST) for c in made)]


def cases_here() -> list[Case]:
    """Return all but the one that ends this process."""
    spec, fixed = CommunicatorSpec(SIZE), len(SUITE.grid(()))
    found = [c for c in cases(SUITE, (), SEED, NUM_RANDOM) if c.setup.spec == spec]
    assert len(found) > fixed / 2
    return [case for case in found if case.setup.shape.verb != DIES]


@pytest.mark.parametrize(("candidate", "facts"), candidates(), ids=lambda x: x.name)
def test_every_case(candidate: Candidate, facts: DeviceFacts, tmp_path: Path) -> None:
    members = [Member(candidate, CommunicatorSpec(SIZE), facts, r, tmp_path) for r in range(SIZE)]
    with ThreadPoolExecutor(SIZE) as pool:
        for case in cases_here():
            answers = list(pool.map(lambda m, case=case: m.answer(case, poison=False), members))
            assert joined(answers).defect == "", case.setup
        list(pool.map(Member.close, members))
