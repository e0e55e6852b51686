"""The selective-scan reference against the recurrence written out in float64, token by token."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots import CacheView, SelectiveScanSpec, SelectiveScanWeights, StepShape
from hotshoe.slots.reference import selective_scan
from hotshoe.slots.reference.selective_scan import SelectiveScan

CPU = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)
SPEC = SelectiveScanSpec(6, 4, 3, 4, "float32", "float32", "float32", 8, "align")
LENGTH = 43


def draw_weights(spec):
    inner, made = spec.inner_size, sum(spec.made)
    return SelectiveScanWeights(
        torch.randn(inner, spec.conv_width),
        torch.randn(inner),
        torch.randn(made, inner),
        torch.randn(inner, spec.dt_rank),
        torch.randn(inner),
        -torch.exp(torch.randn(inner, spec.state_size)),
        torch.randn(inner),
        torch.randn(made) if spec.norm_eps else None,
    )


def oracle(spec, weights, projected):
    """Return y [t, inner], and the state behind each token, in float64."""
    x, z = projected.double().split(list(spec.sections), dim=1)
    padded = F.pad(x, (0, 0, spec.conv_width - 1, 0))
    state, ys, states = torch.zeros(spec.inner_size, spec.state_size).double(), [], []
    for t in range(len(x)):
        window = padded[t : t + spec.conv_width]
        mixed = F.silu((window.T * weights.conv.double()).sum(1) + weights.conv_bias.double())
        parts = list((weights.project.double() @ mixed).split(spec.made))
        if spec.norm_eps is not None:
            norms = weights.norm.double().split(spec.made)
            parts = [
                p * torch.rsqrt(p.square().mean() + spec.norm_eps) * n
                for p, n in zip(parts, norms, strict=True)
            ]
        low, b, c = parts
        dt = F.softplus(weights.dt.double() @ low + weights.dt_bias.double())
        state = state * torch.exp(dt[:, None] * weights.a.double()) + (dt * mixed)[:, None] * b
        ys.append((state @ c + weights.d.double() * mixed) * F.silu(z[t]))
        states.append(state)
    return torch.stack(ys), torch.stack(states)


def run(spec, weights, projected, counts):
    """Feed one sequence in steps of so many tokens; return y and the cache of states."""
    op = SelectiveScan(spec, CPU)
    blocks = -(-sum(counts) // spec.block_size) + 1
    conv = torch.full((blocks, spec.conv_width - 1, spec.inner_size), torch.nan)
    states = torch.full((blocks, 1, spec.inner_size, spec.state_size), torch.nan)
    table, done, ys = torch.arange(blocks, dtype=torch.int32)[None], 0, []
    for n in counts:
        own, done = projected[done : done + n], done + n
        lens = torch.tensor([done], dtype=torch.int32)
        shape = StepShape(1, torch.tensor([0, n], dtype=torch.int32), lens, n, done)
        view = CacheView(table, torch.zeros(n, dtype=torch.int32))
        ys.append(op(own.clone(), (conv, states), op.prepare(shape, view), weights))
    return torch.cat(ys), states


@pytest.mark.parametrize("norm_eps", [None, 1e-5])
@pytest.mark.parametrize("counts", [[LENGTH], [1] * LENGTH, [17, 1, 1, 20, 4], [2, 41]])
def test_steps_of_any_size_are_the_recurrence(counts, norm_eps):
    spec = replace(SPEC, norm_eps=norm_eps)
    weights, projected = draw_weights(spec), torch.randn(LENGTH, sum(spec.sections))
    expected, behind = oracle(spec, weights, projected)
    actual, states = run(spec, weights, projected, counts)
    scale = expected.abs().max()
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-4 * scale.item())
    last = states[(LENGTH - 1) // spec.block_size, 0].double()
    bound = 1e-4 * behind.abs().max().item()
    torch.testing.assert_close(last, behind[-1], rtol=0, atol=bound)


def test_room_for_one_sequence_is_room_for_all(monkeypatch):
    monkeypatch.setattr(selective_scan, "ENTRIES", 1)
    spec, tokens = SPEC, torch.randn(2, 20, sum(SPEC.sections))
    weights, op = draw_weights(SPEC), SelectiveScan(SPEC, CPU)
    conv, states = torch.zeros(6, 3, 6), torch.zeros(6, 1, 6, 4)
    table = torch.arange(6, dtype=torch.int32).view(2, 3)
    ends = torch.tensor([0, 20, 40], dtype=torch.int32)
    shape = StepShape(2, ends, torch.full((2,), 20, dtype=torch.int32), 20, 20)
    view = CacheView(table, torch.zeros(40, dtype=torch.int32))
    out = op(tokens.flatten(0, 1), (conv, states), op.prepare(shape, view), weights)
    for i, part in enumerate(out.split(20)):
        expected = oracle(spec, weights, tokens[i])[0]
        bound = 1e-4 * expected.abs().max().item()
        torch.testing.assert_close(part.double(), expected, rtol=0, atol=bound)


def test_decays_that_leave_nothing_overflow_nothing():
    weights = draw_weights(SPEC)
    weights = replace(weights, a=weights.a * 1e4, dt_bias=weights.dt_bias + 50)
    projected = torch.randn(LENGTH, sum(SPEC.sections))
    expected = oracle(SPEC, weights, projected)[0]
    actual, _ = run(SPEC, weights, projected, [LENGTH])
    bound = 1e-4 * expected.abs().max().item()
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=bound)
