"""The cases of gated_activation find another activation, or swapped halves."""

import pytest

from hotshoe.slots import accept
from hotshoe.slots.reference.activation import build


def test_the_reference_passes_also_quantized(defects) -> None:
    assert defects("gated_activation", build, supports=lambda spec, facts: accept(1)) == []


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_an_activation_that_is_overlooked(finds, blind, activation: str) -> None:
    assert finds("gated_activation", blind("gated_activation", activation=activation))


def test_halves_that_are_swapped(finds, wrapped) -> None:
    def swapped(op, spec, x):
        return op(x.roll(spec.size, dims=1))

    assert finds("gated_activation", wrapped("gated_activation", swapped))


def test_rows_with_nan_whose_scale_is_a_number(defects, wrapped) -> None:
    def healthy(op, spec, x):
        return op(x if spec.quant is None else x.nan_to_num())

    swallowing = wrapped("gated_activation", healthy)
    found = defects("gated_activation", swallowing, supports=lambda spec, facts: accept(1))
    assert found
    assert [d for d in found if "instead of nan" not in d] == []
