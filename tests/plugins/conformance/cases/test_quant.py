"""What rounding to eight bits may move, measured against the reference's rounding."""

import pytest
import torch

from hotshoe.slots.reference.linear import quantize_rows
from hotshoe_conformance.cases.quant import ACTIVATIONS, plain, rounding


@pytest.mark.parametrize("quant", ACTIVATIONS, ids=lambda quant: quant.format)
def test_the_bound_holds_and_is_near(quant) -> None:
    x = torch.randn(64, 500) * torch.rand(64, 1) * 10
    error = (plain(quantize_rows(x, quant.format), quant) - x).abs()
    bound = rounding(x, quant)
    assert (error <= bound).all()
    assert (error / bound).max() > 0.8
    assert rounding(torch.zeros(0, 5), quant).shape == (0, 5)


def test_forms_that_are_refused() -> None:
    quant = ACTIVATIONS[0]
    values, scales = quantize_rows(torch.randn(3, 4), quant.format)
    for wrong in (
        values,
        (values.float(), scales),
        (values, scales.double()),
        (values, scales[:1]),
    ):
        with pytest.raises(AssertionError):
            plain(wrong, quant)
