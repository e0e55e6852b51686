"""The gated activation reference against the formulas in float64."""

import math

import pytest
import torch

from hotshoe.slots import GatedActivationSpec
from hotshoe.slots.reference.activation import ACTIVATIONS, build

FORMULAS = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
}


def test_all_are_tested():
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name):
    x = torch.randn(6, 22) * 3
    got = build(GatedActivationSpec(11, name, "float32"), None)(x)
    gate, up = x[:, :11].double(), x[:, 11:].double()
    rows = [[FORMULAS[name](g) for g in row] for row in gate.tolist()]
    expected = torch.tensor(rows, dtype=torch.float64) * up
    # Far below zero the result is small, but its rounding is that of 1 + erf, near 1 - 1.
    assert ((got.double() - expected).abs() <= 1e-6 * (gate * up).abs()).all()


@pytest.mark.parametrize("name", FORMULAS)
def test_extremes_stay_finite(name):
    x = torch.tensor([[-1e4, 1e4, 0.0, 1.0, 1.0, 1.0]])
    got = build(GatedActivationSpec(3, name, "float32"), None)(x)
    torch.testing.assert_close(got, torch.tensor([[0.0, 1e4, 0.0]]))


def test_keeps_the_type():
    x = torch.randn(2, 8).bfloat16()
    assert build(GatedActivationSpec(4, "silu", "bfloat16"), None)(x).dtype == torch.bfloat16
