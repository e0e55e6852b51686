"""The cases of sample find whoever overlooks an argument, a tie or a row without a token."""

import pytest
import torch

from hotshoe.slots.reference.sampling import build


def test_the_reference_passes(defects) -> None:
    assert defects("sample", build) == []


@pytest.mark.parametrize(
    ("argument", "value"), [(1, 0.0), (1, 1.0), (2, 0), (3, 1.0), (4, 0.0), (5, 0.5)]
)
def test_arguments_that_are_overlooked(defects, wrapped, argument: int, value: float) -> None:
    def change(op, spec, *arguments):
        changed = list(arguments)
        changed[argument] = torch.full_like(arguments[argument], value)
        return op(*changed)

    found = defects("sample", wrapped("sample", change))
    assert found
    assert all(defect.startswith("tokens: token ") for defect in found)


def no_failures(op, spec, *arguments):
    return op(*arguments).clamp(min=0)


def last_of_ties(op, spec, logits, *more):
    return spec.vocab_size - 1 - op(logits.flip(1), *more)


def spoiling(op, spec, logits, *more):
    tokens = op(logits, *more)
    logits.div_(2)
    return tokens


@pytest.mark.parametrize("change", [no_failures, last_of_ties, spoiling])
def test_ties_failures_and_inputs(finds, wrapped, change) -> None:
    assert finds("sample", wrapped("sample", change))
