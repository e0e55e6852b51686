"""The threshold search over float bits, and the inverse of the CDF, on their own."""

import pytest
import torch
import triton
import triton.language as tl

from hotshoe.platform import DeviceFacts
from hotshoe_triton.kernels.sampling import invert, ordered, threshold

LOWEST = -(2**31)


@triton.jit
def keys(out_ptr, x_ptr, BLOCK: tl.constexpr):
    """Write the keys of some values."""
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, ordered(tl.load(x_ptr + lane)))


@triton.jit
def find(
    out_ptr, x_ptr, goal, lowest, largest, COUNT: tl.constexpr, SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the threshold of a row."""
    tl.store(out_ptr, threshold(x_ptr, goal, lowest, largest, 1.0, COUNT, SIZE, CHUNK))


@triton.jit
def pick(out_ptr, x_ptr, uniform_ptr, total, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """Write the index that a uniform number picks; weights are 2 ** x."""
    uniform = tl.load(uniform_ptr)
    zero = tl.full((), 0, tl.int32)
    before = tl.zeros((), tl.float64)
    low = tl.full((), -2147483648, tl.int32)
    index = invert(x_ptr, uniform, total, low, 0.0, 0.0, 1.0, zero, before, SIZE, CHUNK)
    tl.store(out_ptr, index)


def keys_of(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(x), dtype=torch.int32, device=x.device)
    keys[(1,)](out, x, BLOCK=len(x))
    return out


def test_keys_order_as_values_do(facts: DeviceFacts, rng: torch.Generator) -> None:
    x = torch.randn(64, generator=rng, device=facts.device)
    x[:6] = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), 1e-45, -1e-45])
    found = keys_of(x)
    assert found[0] == found[1]
    order = x.double().argsort(stable=True)
    assert (found[order].diff() >= 0).all()
    assert ((found[:, None] < found[None, :]) == (x[:, None] < x[None, :])).all()


@pytest.mark.parametrize("k", [1, 2, 5, 50])
def test_counted_thresholds_are_the_kth_value(
    facts: DeviceFacts, k: int, rng: torch.Generator
) -> None:
    x = torch.randn(50, generator=rng, device=facts.device)
    x[7] = x[9]
    out = torch.zeros(1, dtype=torch.int32, device=facts.device)
    find[(1,)](out, x, float(k), LOWEST, x.max().item(), COUNT=True, SIZE=50, CHUNK=32)
    value = x.sort(descending=True).values[k - 1 : k]
    assert out.item() == keys_of(value).item()


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_weighed_thresholds_reach_the_share(
    facts: DeviceFacts, share: float, rng: torch.Generator
) -> None:
    x = torch.randn(50, generator=rng, device=facts.device)
    weights = torch.exp2(x - x.max()).double()
    out = torch.zeros(1, dtype=torch.int32, device=facts.device)
    goal = (weights.sum() * share).item()
    find[(1,)](out, x, goal, LOWEST, x.max().item(), COUNT=False, SIZE=50, CHUNK=32)
    values = x.sort(descending=True).values
    sums = torch.exp2(values - x.max()).double().cumsum(0)
    last = values[(sums < goal).sum()]
    assert out.item() == keys_of(last[None]).item()


@pytest.mark.parametrize("chunk", [8, 64])
@pytest.mark.parametrize("uniform", [0.0, 0.3, 0.62, 1 - 2**-53])
def test_indices_follow_the_cdf(facts: DeviceFacts, chunk: int, uniform: float) -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0, 4.0, 0.0, 0.0, 0.0, 8.0, 0.0])
    x = weights.log2().to(facts.device)
    sums = weights.double().cumsum(0)
    out = torch.zeros(1, dtype=torch.int32, device=facts.device)
    number = torch.tensor([uniform], dtype=torch.float64, device=facts.device)
    pick[(1,)](out, x, number, sums[-1].item(), SIZE=len(x), CHUNK=chunk)
    assert out.item() == int((sums <= uniform * sums[-1]).sum())
