"""Sampling against an independent float64 sort: filters, ties, the CDF's edges, broken rows."""

import math
from types import ModuleType

import pytest
import torch

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
JUST_BELOW_ONE = math.nextafter(1.0, 0.0)


def sample(
    native: ModuleType, logits: torch.Tensor, uniform: torch.Tensor, **parameters: object
) -> list[int]:
    """Run the kernel; a parameter is one number for all rows or a tensor [rows]."""
    n = len(logits)

    def rows(name: str, dtype: torch.dtype) -> torch.Tensor:
        value = torch.as_tensor(parameters.get(name, OFF[name]), dtype=dtype)
        return value.expand(n).contiguous()

    tokens = torch.full((n,), -7, dtype=torch.int64)
    tensors = (
        tokens,
        logits,
        rows("temperature", torch.float32),
        rows("top_k", torch.int32),
        rows("top_p", torch.float32),
        rows("min_p", torch.float32),
        uniform.double().contiguous(),
    )
    native.sample(
        *(t.data_ptr() for t in tensors),
        *(n, logits.shape[1], logits.stride(0), 0 if logits.dtype == torch.float32 else 1),
    )
    return tokens.tolist()


def interval(
    row: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float, slack: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Kept probabilities of one row by full sort, with filters loosened by `slack`."""
    x = row.double() / temperature
    p = torch.softmax(x, -1)
    if 0 < top_k < len(row):
        p = torch.where(row >= row.sort(descending=True).values[top_k - 1], p, 0.0)
        p /= p.sum()
    if top_p < 1:
        order = p.sort(descending=True).values
        needed = int((order.cumsum(0) < top_p + slack).sum().clamp(max=len(p) - 1))
        p = torch.where(p >= order[needed] * (1 - slack), p, 0.0)
    p = torch.where(p >= min_p * p.max() * (1 - slack), p, 0.0)
    p = p / p.sum()
    return p, p.cumsum(0)


def assert_plausible(
    token: int, u: float, row: torch.Tensor, parameters: tuple[float, int, float, float]
) -> None:
    """The token must be the inverse CDF's for filters within rounding of the exact ones."""
    found = []
    for slack in (-1e-5, 0.0, 1e-5):
        p, cdf = interval(row, *parameters, slack)
        low = float(cdf[token] - p[token])
        found.append(p[token] > 0 and low - 1e-5 <= u <= float(cdf[token]) + 1e-5)
    assert any(found), (token, u, parameters)


@pytest.mark.parametrize("vocab", [1, 5, 127, 1000, 4099])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_parameters(
    native: ModuleType, vocab: int, dtype: torch.dtype, rng: torch.Generator
) -> None:
    n = 60

    def some(values: list[float]) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(0, len(values), (n,), generator=rng)]

    wide = torch.full((n, vocab + 3), torch.nan, dtype=dtype)
    logits = wide[:, :vocab]
    logits.copy_(torch.randn(n, vocab, generator=rng) * some([0.1, 1.0, 6.0])[:, None])
    logits += some([-100.0, 0.0, 30.0])[:, None]
    uniform = torch.rand(n, generator=rng, dtype=torch.float64)
    parameters = {
        "temperature": some([0.3, 1.0, 2.5]),
        "top_k": some([0, 1, 2, 40, 900]).int(),
        "top_p": some([0.01, 0.5, 0.95, 0.9999, 1.0]),
        "min_p": some([0.0, 0.02, 0.6]),
    }
    tokens = sample(native, logits, uniform, **parameters)
    for i, token in enumerate(tokens):
        assert_plausible(
            token, float(uniform[i]), logits[i], tuple(v[i].item() for v in parameters.values())
        )


def test_frequencies_follow_the_filtered_softmax(native: ModuleType, rng: torch.Generator) -> None:
    row = torch.randn(40, generator=rng) * 2
    n = 20000
    uniform = torch.rand(n, generator=rng, dtype=torch.float64)
    tokens = sample(native, row.expand(n, -1), uniform, temperature=1.3, top_k=12)
    counts = torch.bincount(torch.tensor(tokens), minlength=40) / n
    expected, _ = interval(row, 1.3, 12, 1.0, 0.0, 0.0)
    assert (counts - expected).abs().max() < 5 * 0.5 / math.sqrt(n)


@pytest.mark.parametrize("vocab", [3, 128, 30011])
def test_temperature_zero_takes_the_first_maximum(
    native: ModuleType, vocab: int, rng: torch.Generator
) -> None:
    logits = torch.randint(-9, 9, (50, vocab), generator=rng).float()
    uniform = torch.rand(50, generator=rng)
    tokens = sample(native, logits, uniform, temperature=0.0, top_p=0.3)
    first = [row.tolist().index(max(row.tolist())) for row in logits]
    assert tokens == first


def test_ties_at_the_boundaries_are_kept(native: ModuleType) -> None:
    logits = torch.tensor([1.0, 5.0, 3.0, 5.0, 3.0, -2.0, 3.0])
    uniform = (torch.arange(1000) + 0.5) / 1000
    rows = logits.expand(1000, -1)
    assert set(sample(native, rows, uniform, top_k=1)) == {1, 3}
    assert set(sample(native, rows, uniform, top_k=3)) == {1, 2, 3, 4, 6}
    assert set(sample(native, rows, uniform, top_p=0.2)) == {1, 3}
    assert set(sample(native, rows, uniform, top_p=0.9)) == {1, 2, 3, 4, 6}
    assert set(sample(native, rows, uniform, min_p=1.0)) == {1, 3}
    zeros = torch.tensor([0.0, -0.0, -1.0, 0.0])
    assert set(sample(native, zeros.expand(1000, -1), uniform, top_k=1)) == {0, 1, 3}


def test_top_p_acts_on_what_top_k_left(native: ModuleType) -> None:
    # Of all, 0.4 + 0.3 reach 0.65; of the renormalized three, 4/9 + 3/9 do not drop the second.
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    uniform = (torch.arange(1000) + 0.5) / 1000
    rows = logits.expand(1000, -1)
    assert set(sample(native, rows, uniform, top_k=3, top_p=0.8)) == {0, 1, 2}
    assert set(sample(native, rows, uniform, top_k=3, top_p=0.7)) == {0, 1}
    assert set(sample(native, rows, uniform, top_k=2, top_p=0.5)) == {0}


def test_ends_of_the_cdf(native: ModuleType, rng: torch.Generator) -> None:
    logits = torch.randn(2, 5000, generator=rng)
    logits[:, :300] = -torch.inf
    logits[:, 4000:] = -torch.inf
    uniform = torch.tensor([0.0, JUST_BELOW_ONE], dtype=torch.float64)
    assert sample(native, logits, uniform) == [300, 3999]


def test_an_exactly_reached_sum_belongs_to_the_next_token(native: ModuleType) -> None:
    uniform = torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64)
    assert sample(native, torch.zeros(4, 4), uniform) == [0, 1, 2, 3]
    assert sample(native, torch.zeros(4, 512), uniform) == [0, 128, 256, 384]


def test_masked_logits_are_never_taken(native: ModuleType, rng: torch.Generator) -> None:
    logits = torch.full((300, 2000), -torch.inf)
    allowed = torch.randperm(2000, generator=rng)[:3]
    logits[:, allowed] = torch.randn(300, 3, generator=rng)
    uniform = torch.rand(300, generator=rng)
    for filters in ({}, {"top_k": 50}, {"top_p": 0.99}, {"top_k": 1500, "top_p": 0.5}):
        assert set(sample(native, logits, uniform, **filters)) <= set(allowed.tolist())


def test_broken_rows_fail_alone(native: ModuleType, rng: torch.Generator) -> None:
    logits = torch.randn(6, 1000, generator=rng)
    logits[1, 999] = torch.nan
    logits[2, 0] = -torch.nan
    logits[3] = -torch.inf
    logits[4, 3] = torch.inf
    for temperature in (0.0, 1.0):
        tokens = sample(native, logits, torch.full((6,), 0.5), temperature=temperature, top_p=0.9)
        assert [t < 0 for t in tokens] == [False, True, True, True, True, False]
        assert set(tokens[1:5]) == {-1}


def test_extreme_temperatures(native: ModuleType, rng: torch.Generator) -> None:
    logits = torch.randn(100, 500, generator=rng)
    uniform = torch.rand(100, generator=rng)
    for temperature in (1e-45, 1e-30, 1e-7):
        tokens = sample(native, logits, uniform, temperature=temperature, top_p=0.9, min_p=0.1)
        assert tokens == logits.argmax(1).tolist()
    assert len(set(sample(native, logits, uniform, temperature=1000.0))) > 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_vocabulary(native: ModuleType, dtype: torch.dtype, rng: torch.Generator) -> None:
    logits = (torch.randn(4, 262144, generator=rng) * 2).to(dtype)
    uniform = torch.rand(4, generator=rng, dtype=torch.float64)
    top_k, top_p = torch.tensor([0, 50, 20000, 0]), torch.tensor([1.0, 1.0, 0.8, 0.9])
    for i, token in enumerate(sample(native, logits, uniform, top_k=top_k, top_p=top_p)):
        parameters = (1.0, int(top_k[i]), float(top_p[i]), 0.0)
        assert_plausible(token, float(uniform[i]), logits[i], parameters)
