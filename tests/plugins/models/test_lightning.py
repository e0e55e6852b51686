"""Lightning attention: the open gate, and the rates at which heads forget."""

import pytest
import torch
from torch.nn import functional as F

from hotshoe_models.lightning import OPEN, rates


def test_an_open_gate_leaves_what_it_scales():
    assert float(F.silu(torch.tensor(OPEN, dtype=torch.float64))) == pytest.approx(1, abs=1e-15)


def test_rates_fall_with_heads_and_layers():
    first, last = rates(4, 0, 3), rates(4, 2, 3)
    assert first == pytest.approx([2**-2 * 1.00001, 2**-4 * 1.00001, 2**-6, 2**-8], rel=2e-5)
    assert all(0 < late < 1e-4 for late in last)
