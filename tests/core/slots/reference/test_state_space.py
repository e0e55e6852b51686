"""The state-space reference against the recurrence written out in float64, token by token."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots import CacheView, StateSpaceSpec, StateSpaceWeights, StepShape
from hotshoe.slots.reference import states
from hotshoe.slots.reference.state_space import StateSpace

CPU = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)
SPEC = StateSpaceSpec(4, 3, 5, 2, 4, "float32", "float32", "float32", 4)
OPTIONS = [
    {},
    {"num_groups": 1, "conv_width": 2},
    {"dt_limits": (0.2, 0.9)},
    {"norm": "after", "norm_eps": 1e-5, "norm_groups": 2},
    {"norm": "before", "norm_eps": 1e-5},
]
#: More chunks than one in every prompt of some length.
CHUNK = 6
WIDTH = 24


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(states, "CHUNK", CHUNK)


def draw_weights(spec):
    heads = spec.num_heads
    return StateSpaceWeights(
        torch.randn(spec.conv_size, spec.conv_width),
        torch.randn(spec.conv_size),
        -torch.exp(torch.randn(heads)),
        torch.randn(heads),
        torch.randn(heads),
        None if spec.norm == "none" else torch.randn(spec.inner_size),
    )


def oracle(spec, weights, projected):
    """Return y [t, inner], and the state behind each token, in float64."""
    z, inputs, dt = projected.double().split(list(spec.sections), dim=1)
    padded = F.pad(inputs, (0, 0, spec.conv_width - 1, 0))
    state = torch.zeros(spec.num_heads, spec.head_dim, spec.state_size, dtype=torch.float64)
    size, group = spec.num_groups * spec.state_size, spec.num_heads // spec.num_groups
    ys, states = [], []
    for t in range(len(z)):
        window = padded[t : t + spec.conv_width]
        mixed = F.silu((window.T * weights.conv.double()).sum(1) + weights.conv_bias.double())
        x, b, c = mixed.split([spec.inner_size, size, size])
        x = x.view(spec.num_heads, -1)
        step = F.softplus(dt[t] + weights.dt_bias.double()).clamp(*spec.dt_limits)
        for h in range(spec.num_heads):
            own = slice(h // group * spec.state_size, (h // group + 1) * spec.state_size)
            state[h] = state[h] * torch.exp(step[h] * weights.a[h].double())
            state[h] += step[h] * torch.outer(x[h], b[own])
        rows = [
            state[h] @ c[h // group * spec.state_size :][: spec.state_size] + weights.d[h] * x[h]
            for h in range(spec.num_heads)
        ]
        y, gate = torch.cat(rows), F.silu(z[t])
        y = y if spec.norm == "before" else y * gate
        if spec.norm != "none":
            parts = y.view(spec.norm_groups, -1)
            y = (parts * torch.rsqrt(parts.square().mean(1, keepdim=True) + 1e-5)).flatten()
            y = y * weights.norm.double()
        ys.append(y * gate if spec.norm == "before" else y)
        states.append((padded[t + 1 : t + spec.conv_width].clone(), state.clone()))
    return torch.stack(ys), states


class Sequences:
    """Sequences whose steps are run over a cache that starts as NaN."""

    def __init__(self, spec, lengths):
        self.spec, self.op = spec, StateSpace(spec, CPU)
        self.weights = draw_weights(spec)
        self.texts = [torch.randn(n, sum(spec.sections)) for n in lengths]
        self.found = [torch.empty(0, spec.inner_size)] * len(lengths)
        self.wanted = [oracle(spec, self.weights, text) for text in self.texts]
        count = len(lengths) * WIDTH
        self.table = torch.randperm(count).view(len(lengths), WIDTH).int()
        shape = (spec.num_heads, spec.head_dim, spec.state_size)
        self.cache = (
            torch.full((count, spec.conv_width - 1, spec.conv_size), float("nan")),
            torch.full((count, *shape), float("nan")),
        )

    def step(self, counts, on_host=True):
        """Compute the next tokens of some sequences: number of tokens by sequence."""
        rows = list(counts)
        begins = [len(self.found[row]) for row in rows]
        ends = [a + n for a, n in zip(begins, counts.values(), strict=True)]
        lens = (list(counts.values()), ends)
        shape = StepShape(
            len(rows),
            torch.tensor([0, *lens[0]]).cumsum(0).int(),
            torch.tensor(ends, dtype=torch.int32),
            max(lens[0]),
            max(ends),
            lens if on_host else None,
        )
        view = CacheView(self.table[rows], torch.zeros(sum(lens[0]), dtype=torch.int32))
        spans = zip(rows, begins, ends, strict=True)
        projected = torch.cat([self.texts[row][a:b] for row, a, b in spans])
        out = self.op(projected, self.cache, self.op.prepare(shape, view), self.weights)
        for row, part in zip(rows, out.split(lens[0]), strict=True):
            self.found[row] = torch.cat((self.found[row], part))

    def check(self):
        for found, (wanted, _) in zip(self.found, self.wanted, strict=True):
            assert len(found)
            torch.testing.assert_close(found.double(), wanted[: len(found)], rtol=1e-4, atol=1e-4)

    def check_state(self, row, length):
        """Compare the state that lies in the column of a number of tokens."""
        none = self.spec.checkpoints == "none"
        block = self.table[row, 0 if none else (length - 1) // self.spec.block_size]
        for cache, wanted in zip(self.cache, self.wanted[row][1][length - 1], strict=True):
            torch.testing.assert_close(cache[block].double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", OPTIONS)
def test_prompts_and_single_tokens_are_the_recurrence(options):
    run = Sequences(replace(SPEC, **options), [30, 1, 14, 9])
    run.step({0: 20, 2: 7, 3: 2})
    run.step({1: 1, 0: 1, 3: 1, 2: 5})
    run.step({0: 1, 2: 1})
    run.step({3: 6, 0: 8, 2: 1})
    run.check()
    for row, length in enumerate([30, 1, 14, 9]):
        run.check_state(row, length)


@pytest.mark.parametrize("on_host", [True, False])
def test_lengths_are_taken_from_the_device_where_the_host_has_none(on_host):
    run = Sequences(SPEC, [13, 20])
    run.step({0: 12, 1: 19}, on_host)
    run.step({0: 1, 1: 1}, on_host)
    run.check()


def test_a_single_state_lies_in_the_first_block_alone():
    run = Sequences(SPEC, [13])
    run.step({0: 12})
    run.step({0: 1})
    run.check_state(0, 13)
    others = torch.ones(WIDTH, dtype=torch.bool)
    others[run.table[0, 0]] = False
    assert all(cache[others].isnan().all() for cache in run.cache)


def test_aligned_states_stay_where_steps_ended():
    run = Sequences(replace(SPEC, checkpoints="align"), [19])
    for count in (8, 4, 4, 2, 1):
        run.step({0: count})
    run.check()
    for length in (8, 12, 16, 19):
        run.check_state(0, length)
    first, second = run.table[0, :2]
    assert run.cache[1][first].isnan().all() and not run.cache[1][second].isnan().any()


def test_every_block_keeps_its_state_if_asked():
    run = Sequences(replace(SPEC, checkpoints="all"), [23, 18])
    run.step({0: 7, 1: 17})
    run.step({0: 15, 1: 1})
    run.step({0: 1})
    run.check()
    for row, lengths in enumerate([(4, 8, 12, 16, 20, 23), (4, 8, 12, 16, 18)]):
        for length in lengths:
            run.check_state(row, length)


def test_a_state_that_another_sequence_left_is_gone_on_with():
    run = Sequences(replace(SPEC, checkpoints="align"), [20, 20])
    run.texts[1] = torch.cat((run.texts[0][:8], run.texts[1][8:]))
    run.wanted[1] = oracle(run.spec, run.weights, run.texts[1])
    run.step({0: 8})
    run.table[1, 1] = run.table[0, 1]
    run.found[1] = run.found[0].clone()
    kept = run.cache[1][run.table[0, 1]].clone()
    run.step({0: 12, 1: 12})
    run.check()
    assert torch.equal(run.cache[1][run.table[0, 1]], kept)


def test_decays_are_exact_where_much_has_decayed_before():
    """One long step of time before many short ones: running totals lose the short ones' digits."""
    spec = replace(SPEC, num_groups=1, conv_width=2)
    run = Sequences(spec, [CHUNK])
    run.texts[0][:, -spec.num_heads :] = -9.0
    run.texts[0][0, -spec.num_heads :] = 3e4
    run.wanted[0] = oracle(spec, run.weights, run.texts[0])
    run.step({0: CHUNK})
    run.check()


def test_bfloat16_is_rounded_once():
    spec = replace(SPEC, dtype="bfloat16", conv_dtype="bfloat16")
    exact = Sequences(replace(spec, dtype="float32", conv_dtype="float32"), [15])
    exact.texts[0] = exact.texts[0].bfloat16().float()
    run = Sequences(spec, [15])
    run.weights, run.table = exact.weights, exact.table
    run.cache = (run.cache[0].bfloat16(), run.cache[1])
    run.texts[0] = exact.texts[0].bfloat16()
    run.found = [torch.empty(0, spec.inner_size, dtype=torch.bfloat16)]
    for one in (exact, run):
        one.step({0: 15})
    assert torch.equal(run.found[0], exact.found[0].bfloat16())
