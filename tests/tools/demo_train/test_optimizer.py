"""Muon's update is nearly orthogonal, and both parts lower a loss."""

import itertools

import pytest
import torch
from demo_train.optimizer import Muon, orthogonalise, rate_at


@pytest.mark.parametrize("shape", [(3, 32, 64), (2, 64, 32), (1, 48, 48)])
def test_singular_values_come_near_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape)
    values = torch.linalg.svdvals(orthogonalise(matrices).float())
    assert values.shape == (shape[0], min(shape[1:]))
    assert values[:, : values.shape[1] // 2].min() > 0.5
    assert values.max() < 1.4


def test_muon_fits_a_linear_map() -> None:
    wanted = torch.randn(8, 16)
    weights = [torch.nn.Parameter(torch.zeros(8, 16)) for _ in range(2)]
    muon = Muon(weights, weight_decay=0.0, compiled=False)
    inputs = torch.randn(64, 16)
    losses = []
    for step in range(150):
        loss = sum(((inputs @ (weight - wanted).T) ** 2).mean() for weight in weights)
        losses.append(loss.item())
        loss.backward()
        muon.step(0.1 * rate_at(step, 150, warm_up=5))
    assert losses[-1] < 0.01 * losses[0]
    assert all(weight.grad is None for weight in weights)


def test_weight_decay_shrinks() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    weight.grad = torch.zeros(4, 4)
    Muon([weight], weight_decay=0.5, compiled=False).step(0.1)
    assert torch.allclose(weight, torch.full((4, 4), 0.95))


def test_rate_rises_stays_and_falls_to_nothing() -> None:
    rates = [rate_at(step, 1000) for step in range(1000)]
    assert rates[0] == 0.01
    assert rates[99:500] == [1.0] * 401
    assert rates[750] == pytest.approx(0.5)
    assert 0 < rates[999] < 0.01
    assert all(a >= b for a, b in itertools.pairwise(rates[500:]))
