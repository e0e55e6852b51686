"""The gated-delta reference against the recurrence written out in float64, token by token."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots import CacheView, GatedDeltaSpec, GatedDeltaWeights, StepShape
from hotshoe.slots.reference.gated_delta import GatedDelta

CPU = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)
SPEC = GatedDeltaSpec(4, 2, 6, 5, 3, "float32", "float32", "float32", 4, 1e-5)
OPTIONS = [
    {},
    {"beta_scale": 2.0, "decay_floor": -3.0},
    {"decay": "channel", "gate": "sigmoid"},
    {"num_key_heads": 4, "conv_width": 2},
]
WIDTH = 40


def draw_weights(spec):
    return GatedDeltaWeights(
        torch.randn(spec.conv_size, spec.conv_width),
        -torch.exp(torch.randn(spec.num_heads)),
        torch.randn(spec.num_decays),
        torch.randn(spec.value_dim),
    )


def oracle(spec, weights, projected):
    """Return y [t, inner], and the states behind each token [t, heads, value_dim, key_dim]."""
    mixed, z, beta, decay = projected.double().split(list(spec.sections), dim=1)
    padded = F.pad(mixed, (0, 0, spec.conv_width - 1, 0))
    state = torch.zeros(spec.num_heads, spec.value_dim, spec.key_dim, dtype=torch.float64)
    keys, each = spec.num_key_heads * spec.key_dim, spec.num_heads // spec.num_key_heads
    ys, states = [], []
    for t in range(len(z)):
        window = padded[t : t + spec.conv_width]
        q, k, v = F.silu((window.T * weights.conv.double()).sum(1)).split(
            [keys, keys, spec.inner_size]
        )
        logs = (decay[t] + weights.dt_bias.double()).view(spec.num_heads, -1)
        rates = weights.a.double()[:, None]
        logs = (
            rates * F.softplus(logs)
            if spec.decay_floor is None
            else spec.decay_floor * torch.sigmoid(-rates * logs)
        )
        rows = []
        for h in range(spec.num_heads):
            own = slice(h // each * spec.key_dim, (h // each + 1) * spec.key_dim)
            key = k[own] / torch.sqrt(k[own] @ k[own] + 1e-6)
            query = q[own] / torch.sqrt(q[own] @ q[own] + 1e-6) * spec.key_dim**-0.5
            value = v[h * spec.value_dim : (h + 1) * spec.value_dim]
            state[h] *= torch.exp(logs[h])
            state[h] += torch.outer(
                spec.beta_scale * torch.sigmoid(beta[t, h]) * (value - state[h] @ key), key
            )
            y = state[h] @ query
            y = y * torch.rsqrt(y.square().mean() + spec.norm_eps) * weights.norm.double()
            gate = z[t, h * spec.value_dim : (h + 1) * spec.value_dim]
            rows.append(y * (F.silu(gate) if spec.gate == "silu" else torch.sigmoid(gate)))
        ys.append(torch.cat(rows))
        states.append(state.clone())
    return torch.stack(ys), torch.stack(states)


class Sequences:
    """Sequences whose steps are run over a cache that starts as NaN."""

    def __init__(self, spec, texts, weights):
        self.spec, self.texts, self.weights = spec, texts, weights
        self.op = GatedDelta(spec, CPU)
        self.found = [torch.empty(0, spec.inner_size, dtype=texts[0].dtype)] * len(texts)
        count = len(texts) * WIDTH
        self.table = torch.randperm(count).view(len(texts), WIDTH).int()
        state = (spec.num_heads, spec.value_dim, spec.key_dim)
        self.cache = (
            torch.full((count, spec.conv_width - 1, spec.conv_size), float("nan")),
            torch.full((count, *state), float("nan")),
        )

    @classmethod
    def drawn(cls, spec, lengths):
        texts = [torch.randn(length, sum(spec.sections)) for length in lengths]
        return cls(spec, texts, draw_weights(spec))

    def step(self, counts):
        """Compute the next tokens of some sequences: number of tokens by sequence."""
        rows, new = list(counts), list(counts.values())
        begins = [len(self.found[row]) for row in rows]
        ends = [begin + count for begin, count in zip(begins, new, strict=True)]
        starts, lens = torch.tensor([0, *new]).cumsum(0).int(), torch.tensor(ends).int()
        shape = StepShape(len(rows), starts, lens, max(new), max(ends), (new, ends))
        view = CacheView(self.table[rows], torch.zeros(sum(new), dtype=torch.int32))
        spans = zip(rows, begins, ends, strict=True)
        projected = torch.cat([self.texts[row][a:b] for row, a, b in spans])
        out = self.op(projected, self.cache, self.op.prepare(shape, view), self.weights)
        for row, part in zip(rows, out.split(new), strict=True):
            self.found[row] = torch.cat((self.found[row], part))

    def check(self):
        """Compare results, and the state that each sequence's last step left."""
        for row, found in enumerate(self.found):
            length = len(found)
            wanted, states = oracle(self.spec, self.weights, self.texts[row][:length])
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
            self.check_state(row, length, states[-1])

    def check_state(self, row, length, wanted):
        none = self.spec.checkpoints == "none"
        block = self.table[row, 0 if none else (length - 1) // self.spec.block_size]
        found = self.cache[1][block].double()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", OPTIONS)
def test_prompts_and_single_tokens_are_the_recurrence(options):
    run = Sequences.drawn(replace(SPEC, **options), [90, 1, 14, 9])
    run.step({0: 70, 2: 7, 3: 2})
    run.step({1: 1, 0: 1, 3: 1, 2: 5})
    run.step({0: 1, 2: 1})
    run.step({3: 6, 0: 18, 2: 1})
    assert [len(found) for found in run.found] == [90, 1, 14, 9]
    run.check()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.sampled_from(OPTIONS))
def test_cuts_between_steps_change_nothing(counts, options):
    spec = replace(SPEC, **options)
    whole = Sequences.drawn(spec, [sum(counts)])
    cut = Sequences(spec, whole.texts, whole.weights)
    whole.step({0: sum(counts)})
    for count in counts:
        cut.step({0: count})
    torch.testing.assert_close(cut.found[0], whole.found[0], rtol=1e-4, atol=1e-4)
    states = (run.cache[1][run.table[0, 0]] for run in (cut, whole))
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mode", "kept"), [("align", [22]), ("all", [4, 8, 12, 16, 20, 22])])
def test_states_are_kept_where_they_should(mode, kept):
    run = Sequences.drawn(replace(SPEC, checkpoints=mode, decay="channel"), [22])
    run.step({0: 22})
    _, states = oracle(run.spec, run.weights, run.texts[0])
    for length in kept:
        run.check_state(0, length, states[length - 1])
    untouched = torch.ones(WIDTH, dtype=torch.bool)
    untouched[run.table[0, [(length - 1) // 4 for length in kept]].long()] = False
    assert all(cache[untouched].isnan().all() for cache in run.cache)


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_decays_are_exact_where_much_has_decayed_before(decay):
    """One token that forgets all before many that forget little: running totals lose digits."""
    run = Sequences.drawn(replace(SPEC, decay=decay), [16])
    run.texts[0][:, -run.spec.num_decays :] = -9.0
    run.texts[0][0, -run.spec.num_decays :] = 3e4
    run.step({0: 16})
    run.check()


def test_bfloat16_is_rounded_once():
    exact = Sequences.drawn(SPEC, [15])
    texts = [exact.texts[0].bfloat16()]
    exact.texts = [texts[0].float()]
    spec = replace(SPEC, dtype="bfloat16")
    run = Sequences(spec, texts, exact.weights)
    for one in (exact, run):
        one.step({0: 15})
    assert torch.equal(run.found[0], exact.found[0].bfloat16())
