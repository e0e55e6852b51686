"""Forwards of norms: those that are of a kind of their own stay the engine's."""

import pytest
import torch
from torch import nn

from hotshoe_bridge import forwards


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))
        self.variance_epsilon = 1e-5

    def forward_native(self, x, residual=None, added=None):
        return "its own"


@torch.inference_mode()
@pytest.mark.parametrize("name", list(forwards.PLAIN))
def test_a_norm_of_another_kind_stays(operations, name) -> None:
    norm, forward = Norm(), forwards.norm(0.0, operations)
    x = torch.randn(3, 16)
    want = nn.functional.rms_norm(x, (16,), norm.weight, 1e-5)
    assert torch.allclose(forward(norm, x), want, atol=1e-5)
    vars(norm)[name] = 8
    assert forward(norm, x) == "its own"


@torch.inference_mode()
def test_what_is_added_further_stays(operations) -> None:
    norm, forward = Norm(), forwards.norm(0.0, operations)
    x = torch.randn(3, 16)
    assert forward(norm, x, x, x) == "its own"
    assert forward(norm, x, x, added=x) == "its own"
    assert isinstance(forward(norm, x, x, added=None), tuple)
    assert forward(norm, x.half()) == "its own"  # the weight has another type
