"""The reference of slot `sample` against a brute-force oracle in plain Python floats."""

import math

import pytest
import torch

from hotshoe.slots.reference.sampling import build
from hotshoe.slots.specs import SampleSpec


def oracle(logits, temperature, top_k, top_p, min_p, uniform):
    """One row, step by step as the contract says it."""
    if any(math.isnan(x) for x in logits) or not math.isfinite(max(logits)):
        return -1
    if temperature == 0:
        return logits.index(max(logits))
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    keep = set(range(len(logits)))
    if 0 < top_k < len(logits):
        lowest = sorted(logits, reverse=True)[top_k - 1]
        keep = {i for i in keep if logits[i] >= lowest}
    if top_p < 1:
        total, mass, lowest = sum(weights[i] for i in keep), 0.0, 0.0
        for i in sorted(keep, key=lambda i: -logits[i]):
            mass, lowest = mass + weights[i], logits[i]
            if mass >= top_p * total:
                break
        keep = {i for i in keep if logits[i] >= lowest}
    keep = {i for i in keep if weights[i] >= min_p * max(weights)}
    total, mass = sum(weights[i] for i in sorted(keep)), 0.0
    for i in sorted(keep):
        mass += weights[i]
        if mass > uniform * total:
            return i
    return max(i for i in keep if weights[i] > 0)


def run(logits, temperature, top_k, top_p, min_p, uniform):
    op = build(SampleSpec(logits.shape[1]), None)
    return op(
        logits,
        torch.as_tensor(temperature, dtype=torch.float32),
        torch.as_tensor(top_k, dtype=torch.int32),
        torch.as_tensor(top_p, dtype=torch.float32),
        torch.as_tensor(min_p, dtype=torch.float32),
        torch.as_tensor(uniform, dtype=torch.float64),
    )


def check(logits, temperature, top_k, top_p, min_p, uniform):
    before = logits.clone()
    got = run(logits, temperature, top_k, top_p, min_p, uniform)
    assert got.dtype == torch.int64
    assert torch.equal(logits.nan_to_num(7), before.nan_to_num(7)), "the op changed its input"
    columns = (
        torch.as_tensor(x, dtype=torch.float32).tolist() for x in (temperature, top_p, min_p)
    )
    t, p, m = columns
    expected = [
        oracle(row, t[i], int(top_k[i]), p[i], m[i], float(uniform[i]))
        for i, row in enumerate(before.tolist())
    ]
    assert got.tolist() == expected


@pytest.mark.parametrize("seed", range(6))
def test_mixed_rows_agree_with_oracle(seed):
    g = torch.Generator().manual_seed(seed)
    n, vocab = 200, 37
    logits = torch.randn(n, vocab, generator=g) * 3
    logits[::2] = logits[::2].round()  # many ties
    logits[torch.rand(n, vocab, generator=g) < 0.1] = -math.inf
    logits[5, 3], logits[6, 0], logits[7] = math.nan, math.inf, -math.inf
    pick = lambda *choices: torch.tensor(choices)[  # noqa: E731
        torch.randint(len(choices), (n,), generator=g)
    ]
    check(
        logits,
        pick(0.0, 0.3, 1.0, 1.7, 1e-30, 500.0),
        pick(0, 1, 2, 5, 36, 37, 1000),
        pick(1.0, 0.999, 0.9, 0.5, 1e-6),
        pick(0.0, 0.0, 0.05, 1.0),
        torch.rand(n, generator=g, dtype=torch.float64),
    )


def test_each_filter_alone_and_none():
    g = torch.Generator().manual_seed(9)
    logits = torch.randn(64, 50, generator=g)
    u = torch.rand(64, generator=g, dtype=torch.float64)
    ones, zeros = torch.ones(64), torch.zeros(64)
    for k, p, m in ((0, 1.0, 0.0), (4, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.2)):
        check(logits, ones, zeros + k, ones * p, zeros + m, u)


def test_extreme_uniforms_hit_first_and_last_possible_token():
    # Three equal weights: the largest uniform times 3 rounds to 3 itself.
    logits = torch.tensor([[-math.inf, 0.0, 0.0, 0.0, -math.inf]]).repeat(2, 1)
    ones, zeros = torch.ones(2), torch.zeros(2)
    assert run(logits, ones, zeros, ones, zeros, [0.0, 1 - 2**-53]).tolist() == [1, 3]


def test_a_set_that_reaches_top_p_exactly_is_enough():
    logits = torch.tensor([[-1e-30, 0.0]]).repeat(2, 1)  # two weights of exactly 1, no tie
    ones, zeros = torch.ones(2), torch.zeros(2)
    assert run(logits, ones, zeros, ones * 0.5, zeros, [0.1, 0.9]).tolist() == [1, 1]
    assert run(logits, ones, zeros, ones * 0.51, zeros, [0.1, 0.9]).tolist() == [0, 1]


def test_ties_at_the_boundaries_are_kept_and_one_token_always_is():
    logits = torch.zeros(3, 4)
    ones, zeros = torch.ones(3), torch.zeros(3)
    u = [0.1, 0.4, 0.9]
    assert run(logits, ones, zeros + 1, ones, zeros, u).tolist() == [0, 1, 3]
    assert run(logits, ones, zeros, ones * 1e-9, zeros, u).tolist() == [0, 1, 3]
    peaked = torch.tensor([[5.0, 0.0, 9.0, 1.0]]).repeat(3, 1)
    assert run(peaked, ones, zeros, ones * 1e-9, ones, u).tolist() == [2, 2, 2]


def test_greedy_takes_the_lowest_index_on_ties_and_empty_batches_work():
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    zeros, ones = torch.zeros(2), torch.ones(2)
    assert run(logits, zeros, zeros, ones, zeros, zeros).tolist() == [1, 0]
    none = torch.zeros(0)
    assert run(torch.zeros(0, 3), none, none, none, none, none).tolist() == []


def test_no_sort_without_filters(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("sorted without need")

    monkeypatch.setattr(torch.Tensor, "sort", fail)
    logits, zeros, ones = torch.randn(4, 9), torch.zeros(4), torch.ones(4)
    run(logits, zeros, zeros + 3, ones * 0.5, zeros, zeros + 0.5)  # greedy
    run(logits, ones, zeros, ones, zeros + 0.1, zeros + 0.5)  # unfiltered
    with pytest.raises(AssertionError, match="sorted"):
        run(logits, ones, zeros + 3, ones, zeros, zeros + 0.5)


def test_distribution_follows_the_softmax():
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.5]])
    n, temperature = 40_000, 0.8
    u = torch.rand(n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ones, zeros = torch.ones(n), torch.zeros(n)
    tokens = run(logits.repeat(n, 1), ones * temperature, zeros, ones, zeros, u)
    expected = (logits[0] / temperature).softmax(0).double() * n
    counts = tokens.bincount(minlength=5).double()
    assert ((counts - expected) ** 2 / expected).sum() < 40  # 4 degrees, p below 1e-7
