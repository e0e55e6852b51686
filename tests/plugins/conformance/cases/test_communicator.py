"""Every way in which a communicator can be wrong is found, on ranks that are threads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hotshoe.slots import Candidate, CommunicatorSpec, accept
from hotshoe.slots.reference.communicator import Communicator
from hotshoe_conformance.cases.base import HOST, cases
from hotshoe_conformance.cases.communicator import CALLS, DIES, ENDINGS, SIZES, SUITE, Exchange
from hotshoe_conformance.rank import Member
from hotshoe_conformance.ranks import joined

SIZE = 2


def defects(kind: type, verb: str, folder: Path) -> list[str]:
    """Run the cases of one verb over a communicator of a kind."""
    spec = CommunicatorSpec(SIZE)
    candidate = Candidate(SUITE.slot, "mine", lambda s, f: accept(1), kind)
    members = [Member(candidate, spec, HOST, rank, folder) for rank in range(SIZE)]
    found = []
    with ThreadPoolExecutor(SIZE) as pool:
        for case in cases(SUITE, (), 3, range(len(SUITE.grid(())))):
            if case.setup.spec == spec and case.setup.shape.verb == verb:
                answers = list(pool.map(lambda m, case=case: m.answer(case, poison=False), members))
                found.append(joined(answers).defect)
                if any(answer.over for answer in answers):
                    break
        list(pool.map(Member.close, members))
    return [text for text in found if text]


@pytest.mark.parametrize("verb", [*CALLS, *(verb for verb in ENDINGS if verb != DIES)])
def test_the_reference_is_right(verb: str, tmp_path: Path) -> None:
    assert defects(Communicator, verb, tmp_path) == []


class Deaf(Communicator):
    """Counts itself twice and nobody else."""

    def all_reduce(self, x, out=None):
        super().all_reduce(x)
        return (x + x) if out is None else out.copy_(x + x)


class Uneven(Communicator):
    """Rounds on one rank and not on the other."""

    def all_reduce(self, x, out=None):
        total = super().all_reduce(x, out)
        return total.mul_(1 + 1e-7) if self.rank and x.dtype == torch.float32 else total


class Eager(Communicator):
    """Leaves its input changed, and gives away a tensor of its own."""

    def all_reduce(self, x, out=None):
        return super().all_reduce(x, x)

    def all_gather(self, x, sizes=None, out=None):
        return super().all_gather(x, sizes)


class Backwards(Communicator):
    """Joins pieces in the wrong order, and forgets sizes."""

    def all_gather(self, x, sizes=None, out=None):
        return super().all_gather(x, sizes, out).flip(0)

    def all_to_all(self, x, send_sizes=None, recv_sizes=None, out=None):
        return super().all_to_all(x.flip(0), send_sizes, recv_sizes, out)

    def broadcast(self, x, source):
        return super().broadcast(x, 0)


class Careless(Communicator):
    """Takes rows that do not divide, and goes on alone."""

    def reduce_scatter(self, x, sizes=None, out=None):
        return x[: len(x) // self.size]

    def all_reduce(self, x, out=None):
        try:
            return super().all_reduce(x, out)
        except Exception:
            return x

    def send(self, x, to):
        return super().send(x.flip(0), to)


@pytest.mark.parametrize(
    ("kind", "verb", "defect"),
    [
        (Deaf, "all_reduce", "times the tolerance of float32"),
        (Uneven, "all_reduce", "the ranks do not all have the same bits"),
        (Eager, "all_reduce", "x: 12 of 12 values differ"),
        (Eager, "all_gather", "AssertionError: the result is another tensor than `out`"),
        (Backwards, "all_gather", "y: "),
        (Backwards, "all_to_all", "y: "),
        (Backwards, "broadcast", "y: "),
        (Backwards, "one after the other", "y: "),
        (Careless, "reduce_scatter", "y: "),
        (Careless, "uneven without sizes", "9 rows for 2 ranks without sizes raise no ValueError"),
        (Careless, "a rank leaves", "rank 0 gets a result, though another rank has gone"),
        (Careless, "send and recv", "y: "),
    ],
)
def test_what_is_wrong_is_named(kind: type, verb: str, defect: str, tmp_path: Path) -> None:
    found = defects(kind, verb, tmp_path)
    assert found
    assert defect in found[0]


def test_every_operation_size_and_type_has_a_case() -> None:
    setups = SUITE.grid(())
    for size in SIZES:
        shapes: list[Exchange] = [s.shape for s in setups if s.spec.size == size]
        assert {shape.verb for shape in shapes} == {*CALLS, *ENDINGS}
        assert {s.dtype for s in shapes if s.verb == "all_reduce" and s.out} >= {"bfloat16"}
        assert {0} <= {row for s in shapes for row in s.sizes}
