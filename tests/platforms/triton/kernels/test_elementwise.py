"""Device functions of elements: exact where they promise it, finite everywhere."""

import pytest
import torch
import triton
import triton.language as tl

from hotshoe.platform import DeviceFacts
from hotshoe.slots.reference.activation import ACTIVATIONS
from hotshoe_triton.kernels.elementwise import (
    activate,
    largest_bits,
    quantize,
    quantize_row,
    row_scale,
    sigmoid,
)


@triton.jit
def apply(out_ptr, x_ptr, WHAT: tl.constexpr, BLOCK: tl.constexpr):
    """Write a function of x."""
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane)
    if WHAT == "sigmoid":
        y = sigmoid(x)
    else:
        y = activate(x, WHAT)
    tl.store(out_ptr + lane, y)


@triton.jit
def scale_and_round(
    out_ptr, scale_ptr, x_ptr, LIMIT: tl.constexpr, BLOCK: tl.constexpr, DIVIDED: tl.constexpr
):  # fmt: skip
    """Write the scale of a row and its values."""
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane)
    scale = row_scale(largest_bits(x), LIMIT)
    tl.store(scale_ptr, scale)
    if DIVIDED:
        q = quantize(x, scale, LIMIT, out_ptr.dtype.element_ty)
    else:
        q = quantize_row(x, scale, LIMIT, out_ptr.dtype.element_ty)
    tl.store(out_ptr + lane, q)


@pytest.mark.parametrize("what", ["sigmoid", *ACTIVATIONS])
def test_functions_match_torch(facts: DeviceFacts, what: str, rng: torch.Generator) -> None:
    x = torch.randn(64, generator=rng, device=facts.device) * 5
    x[:6] = torch.tensor([0.0, -0.0, 1e4, -1e4, 88.0, -88.0])
    out = torch.full_like(x, float("nan"))
    apply[(1,)](out, x, WHAT=what, BLOCK=64)
    expected = torch.sigmoid(x) if what == "sigmoid" else ACTIVATIONS[what](x)
    torch.testing.assert_close(out, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.int8, 127.0), (torch.float8_e4m3fn, 448.0)])
def test_values_are_the_nearest(
    facts: DeviceFacts, dtype: torch.dtype, limit: float, divided: bool, rng: torch.Generator
) -> None:
    x = torch.randn(64, generator=rng, device=facts.device)
    out = torch.empty(64, dtype=dtype, device=facts.device)
    scale = torch.zeros(1, device=facts.device)
    scale_and_round[(1,)](out, scale, x, LIMIT=limit, BLOCK=64, DIVIDED=divided)
    assert scale.item() == (x.abs().max() / torch.tensor(limit, device=facts.device)).item()
    shrunk = (x / scale).clamp(-limit, limit)
    expected = (shrunk.round() if dtype == torch.int8 else shrunk).to(dtype)
    assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("at", [0, 7, 15])
@pytest.mark.parametrize("nan", [0x7FC00000, 0x7FC00000 - 2**31], ids=hex)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.int8, 127.0), (torch.float8_e4m3fn, 448.0)])
def test_a_row_with_nan_has_nan_for_its_scale(
    facts: DeviceFacts, dtype: torch.dtype, limit: float, nan: int, at: int
) -> None:
    x = torch.arange(16.0, device=facts.device)
    x.view(torch.int32)[at] = nan
    assert x.isnan()[at]
    out = torch.empty(16, dtype=dtype, device=facts.device)
    scale = torch.zeros(1, device=facts.device)
    scale_and_round[(1,)](out, scale, x, LIMIT=limit, BLOCK=16, DIVIDED=False)
    assert scale.isnan().all()


def test_zeros_have_scale_one(facts: DeviceFacts) -> None:
    x = torch.zeros(16, device=facts.device)
    out = torch.full((16,), 9, dtype=torch.int8, device=facts.device)
    scale = torch.zeros(1, device=facts.device)
    scale_and_round[(1,)](out, scale, x, LIMIT=127.0, BLOCK=16, DIVIDED=False)
    assert scale.item() == 1
    assert not out.any()
