"""Clamped gates: silu(gate) * up is then what a mixture of experts computes."""

import pytest
import torch
from torch.nn import functional as F

from hotshoe.layers import clamped


@pytest.mark.parametrize(("alpha", "shift"), [(1.0, 0.0), (1.702, 1.0)])
def test_gates_and_ups_are_those_of_experts(alpha, shift):
    both = 5 * torch.randn(7, 12, dtype=torch.float64)
    gate, up = both.clone().chunk(2, -1)
    gate, up = gate.clamp(max=2.0), up.clamp(-2.0, 2.0)
    clamped(2.0, alpha, shift)(both)
    mine, other = both.chunk(2, -1)
    wanted = gate * torch.sigmoid(alpha * gate) * (up + shift)
    torch.testing.assert_close(F.silu(mine) * other, wanted)
