"""A rank's answers, on ranks that are threads. What each case is, tests/…/cases has."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from hotshoe.slots import Candidate, CommunicatorSpec, accept
from hotshoe.slots.reference.communicator import Communicator
from hotshoe_conformance.cases.base import HOST, Case, cases
from hotshoe_conformance.cases.communicator import SUITE
from hotshoe_conformance.rank import Answer, Member

SPEC = CommunicatorSpec(2)
FIRST = next(iter(cases(SUITE, (), 1, {0})))


def answers(build, folder, case: Case = FIRST) -> list[Answer]:
    candidate = Candidate(SUITE.slot, "mine", lambda s, f: accept(1), build)
    members = [Member(candidate, SPEC, HOST, rank, folder) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda m: m.answer(case, poison=False), members))
        list(pool.map(Member.close, members))
    return found


def test_ranks_say_which_bits_they_have(tmp_path) -> None:
    one, two = answers(Communicator, tmp_path)
    assert one == two
    assert one.case == 0 and one.bits and not one.over and 0 <= one.error <= 1


def test_who_cannot_be_built_leaves(tmp_path) -> None:
    for answer in answers("no_such_library:build", tmp_path):
        assert answer.over
        assert "raises ModuleNotFoundError: No module named 'no_such_library'" in answer.defect


def test_a_rank_that_does_not_know_itself(tmp_path) -> None:
    class Lost(Communicator):
        def open(self, rendezvous):
            super().open(rendezvous)
            self.size = 7

    # The rank that finds it first leaves, and the other may still be on its way to the meeting.
    found = [answer.defect for answer in answers(Lost, tmp_path)]
    assert any(f"it says rank {rank} of 7" in defect for rank, defect in enumerate(found))


@pytest.mark.parametrize(("patient", "defect"), [(False, "promised is an EngineError"), (True, "")])
def test_errors_of_a_device_are_its_own(tmp_path, patient: bool, defect: str) -> None:
    candidate = Candidate(SUITE.slot, "mine", lambda s, f: accept(1), Communicator)
    member = Member(candidate, SPEC, HOST, 0, tmp_path, patient)
    assert defect in member._lost(lambda: 1 / 0)
    assert "gets a result" in member._lost(lambda: 1)
