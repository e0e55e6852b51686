"""Cases are the same ones whenever and however many are run."""

import itertools

import pytest
import torch

from hotshoe.slots import SLOTS
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.base import cases, generator


@pytest.mark.parametrize("slot", SUITES)
def test_an_index_and_a_seed_are_a_case(slot: str) -> None:
    suite = SUITES[slot]
    fixed = len(suite.grid(()))
    many = list(cases(suite, (), 7, range(fixed + 9)))
    assert [case.index for case in many] == list(range(fixed + 9))
    for index in {0, fixed + 8}:
        assert list(cases(suite, (), 7, {index})) == [many[index]]
    other = list(cases(suite, (), 8, range(fixed + 9)))
    assert other[:fixed] != many[:fixed] or fixed == 0
    assert [c.setup for c in other[:fixed]] == [c.setup for c in many[:fixed]]


def test_numbers_depend_on_slot_index_and_seed() -> None:
    def draw(*key: object) -> float:
        return float(torch.rand(1, generator=generator(*key)))

    keys = list(itertools.product((1, 2), ("a", "b"), (0, 1)))
    assert len({draw(*key) for key in keys}) == len(keys)
    assert draw(1, "a", 0) == draw(1, "a", 0)


def test_every_slot_has_cases_or_is_known_to_have_none() -> None:
    without = set(SLOTS) - set(SUITES)
    assert without <= {"communicator"}
    for suite in SUITES.values():
        grid = suite.grid(())
        assert any(setup.quick for setup in grid)
        assert {type(setup.spec) for setup in grid} == {SLOTS[suite.slot].spec_type}
