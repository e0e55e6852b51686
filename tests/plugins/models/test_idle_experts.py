"""Experts that do nothing, against a sum over all experts."""

import pytest
import torch

from hotshoe_models.idle_experts import IdleExperts


class Plain:
    """Experts that multiply by their number plus 2."""

    def __call__(self, x, logits):
        weights, chosen = logits.softmax(-1).topk(3, -1)
        return x * (weights * (chosen + 2)).sum(-1, keepdim=True)


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("favored", [(0, 1, 2), (3, 4, 5), (4, 5, 6)])
def test_idle_experts_put_out_what_they_take_or_nothing(favored, passes):
    """Of 7 experts the last 3 are idle; the correction chooses, and weights do not change by it."""
    experts = object.__new__(IdleExperts)
    logits = torch.randn(5, 7)
    experts._count, experts._top_k, experts._scale, experts._sum = 4, 3, 1.5, None
    experts._passes, experts._experts = passes, Plain()
    experts._correction = torch.zeros(7)
    experts._correction[list(favored)] = 5.0
    x = torch.randn(5, 8)
    factors = torch.tensor([2.0, 3.0, 4.0, 5.0, *[float(passes)] * 3])
    weights = 1.5 * logits.double().softmax(-1)[:, list(favored)]
    wanted = x * (weights * factors[list(favored)]).sum(-1, keepdim=True)
    torch.testing.assert_close(experts(x, logits).double(), wanted, rtol=1e-5, atol=1e-6)
