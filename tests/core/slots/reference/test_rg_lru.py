"""The reference of RG-LRU against the recurrence written out in float64, token by token."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, CacheView, RgLruSpec, RgLruWeights, Selector, StepShape
from hotshoe.slots.reference.rg_lru import RgLru

CPU = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)
SPEC = RgLruSpec(12, 3, 4, "float32", "float32", "float32", 8, "align")
LENGTH = 83


def draw_weights(spec):
    inner, size = spec.inner_size, spec.head_dim
    return RgLruWeights(
        torch.randn(inner, spec.conv_width),
        torch.randn(inner),
        torch.randn(spec.num_heads, size, 2 * size),
        torch.randn(2, inner),
        -8 * F.softplus(torch.randn(inner) - 3),
    )


def oracle(spec, weights, projected):
    """Return the results [t, inner], and the state behind each token, in float64."""
    x, behind = projected.double().split(list(spec.sections), dim=1)
    padded = F.pad(x, (0, 0, spec.conv_width - 1, 0))
    state, found, states = torch.zeros(spec.inner_size).double(), [], []
    for t in range(len(x)):
        window = padded[t : t + spec.conv_width]
        mixed = (window.T * weights.conv.double()).sum(1) + weights.conv_bias.double()
        made = [
            head @ matrix.double()
            for head, matrix in zip(mixed.view(spec.num_heads, -1), weights.gates, strict=True)
        ]
        opening, decay = (
            torch.sigmoid(torch.cat(part) + bias.double())
            for part, bias in zip(
                zip(*(m.chunk(2) for m in made), strict=True), weights.gate_bias, strict=True
            )
        )
        a = torch.exp(weights.rate.double() * decay)
        scale = 1.0 if t == 0 else torch.sqrt(1 - a**2)
        state = a * state + scale * opening * mixed
        found.append(state * F.gelu(behind[t], approximate="tanh"))
        states.append(state)
    return torch.stack(found), torch.stack(states)


def run(spec, weights, projected, counts):
    """Feed one sequence in steps of so many tokens; return results and the cache of states."""
    op = RgLru(spec, CPU)
    blocks = -(-sum(counts) // spec.block_size) + 1
    conv = torch.full((blocks, spec.conv_width - 1, spec.inner_size), torch.nan)
    states = torch.full((blocks, 1, spec.inner_size, 1), torch.nan)
    table, done, found = torch.arange(blocks, dtype=torch.int32)[None], 0, []
    for n in counts:
        own, done = projected[done : done + n], done + n
        lens = torch.tensor([done], dtype=torch.int32)
        shape = StepShape(1, torch.tensor([0, n], dtype=torch.int32), lens, n, done)
        view = CacheView(table, torch.zeros(n, dtype=torch.int32))
        found.append(op(own.clone(), (conv, states), op.prepare(shape, view), weights))
    return torch.cat(found), states


@pytest.mark.parametrize("conv_width", [2, 4])
@pytest.mark.parametrize("counts", [[LENGTH], [1] * LENGTH, [17, 1, 1, 60, 4], [2, 81]])
def test_steps_of_any_size_are_the_recurrence(counts, conv_width):
    spec = replace(SPEC, conv_width=conv_width)
    weights, projected = draw_weights(spec), torch.randn(LENGTH, sum(spec.sections))
    expected, behind = oracle(spec, weights, projected)
    actual, states = run(spec, weights, projected, counts)
    bound = 1e-4 * expected.abs().max().item()
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=bound)
    last = states[(LENGTH - 1) // spec.block_size, 0, :, 0].double()
    bound = 1e-4 * behind.abs().max().item()
    torch.testing.assert_close(last, behind[-1], rtol=0, atol=bound)


@pytest.mark.parametrize("rate", [-1e-9, -1e4])
def test_decays_of_nearly_nothing_and_nearly_all(rate):
    weights = replace(draw_weights(SPEC), rate=torch.full((SPEC.inner_size,), rate))
    projected = torch.randn(LENGTH, sum(SPEC.sections))
    expected, _ = oracle(SPEC, weights, projected)
    actual, _ = run(SPEC, weights, projected, [LENGTH])
    bound = 1e-4 * expected.abs().max().item()
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=bound)


def test_heads_have_equal_sizes():
    with pytest.raises(Exception, match="needs heads of equal size, not 5 of 12 channels"):
        Selector(SLOTS, [], CPU).choose("rg_lru", replace(SPEC, num_heads=5))
