"""Clamped gates: silu(gate) * up is then what a mixture of experts computes."""

import math

import pytest
import torch
from torch.nn import functional as F

from hotshoe.layers import before_silu, clamped


@pytest.mark.parametrize(("alpha", "shift"), [(1.0, 0.0), (1.702, 1.0)])
def test_gates_and_ups_are_those_of_experts(alpha, shift):
    both = 5 * torch.randn(7, 12, dtype=torch.float64)
    gate, up = both.clone().chunk(2, -1)
    gate, up = gate.clamp(max=2.0), up.clamp(-2.0, 2.0)
    clamped(2.0, alpha, shift)(both)
    mine, other = both.chunk(2, -1)
    wanted = gate * torch.sigmoid(alpha * gate) * (up + shift)
    torch.testing.assert_close(F.silu(mine) * other, wanted)


@pytest.mark.parametrize("limit", [0.01, 0.7, 7.0, 16.0, 90.0])
def test_a_limit_behind_silu_is_one_before_it(limit):
    """Where silu falls, left of its least value, there is nothing to clamp."""
    both = torch.randn(64, 12, dtype=torch.float64) * limit * 2
    gate, up = both.clone().chunk(2, -1)
    wanted = F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
    clamped(limit, 1.0, 0.0, before_silu(limit))(both)
    assert (F.silu(gate) > limit).any() and math.isfinite(before_silu(limit))
    mine, other = both.chunk(2, -1)
    torch.testing.assert_close(F.silu(mine) * other, wanted)
