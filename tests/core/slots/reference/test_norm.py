"""The norm references against float64."""

import pytest
import torch

from hotshoe.slots import AddNormSpec, LayerNormSpec, NormSpec
from hotshoe.slots.reference.norm import build_add_norm, build_layer_norm, build_norm

SIZE = 48


def oracle(x, weight, eps, offset):
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * (offset + weight.double())


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_norm(offset, eps):
    x, weight = torch.randn(7, SIZE), torch.randn(SIZE)
    before = x.clone()
    got = build_norm(NormSpec(SIZE, eps, "float32", offset), None)(x, weight)
    torch.testing.assert_close(got.double(), oracle(x, weight, eps, offset), rtol=1e-5, atol=1e-6)
    assert torch.equal(x, before)


@pytest.mark.parametrize("scale", [1.0, 0.22])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_add_norm(scale, offset):
    x, residual, weight = torch.randn(7, SIZE), torch.randn(7, SIZE), torch.randn(SIZE)
    total = residual.double() + scale * x.double()
    op = build_add_norm(AddNormSpec(SIZE, 1e-5, "float32", offset, scale), None)
    got, new_residual = op(x, residual, weight)
    torch.testing.assert_close(new_residual.double(), total, rtol=1e-6, atol=1e-6)
    expected = oracle(total, weight, 1e-5, offset)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)


def test_bfloat16_is_rounded_once():
    x, weight = torch.randn(64, SIZE).bfloat16(), torch.randn(SIZE).bfloat16()
    got = build_norm(NormSpec(SIZE, 1e-6, "bfloat16", 1.0), None)(x, weight)
    exact = oracle(x, weight, 1e-6, 1.0)
    assert got.dtype == torch.bfloat16
    half_ulp = exact.abs() * 2.0**-8
    assert ((got.double() - exact).abs() <= half_ulp * 1.001 + 1e-30).all()


def test_a_row_of_zeros_stays_zero():
    got = build_norm(NormSpec(SIZE, 1e-6, "float32"), None)(torch.zeros(2, SIZE), torch.ones(SIZE))
    assert torch.equal(got, torch.zeros(2, SIZE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_layer_norm(biased, dtype):
    """Float64, rounded once; values far from zero lose nothing to their mean."""
    x, weight, bias = (torch.randn(9, SIZE) + 3).to(dtype), torch.randn(SIZE), torch.randn(SIZE)
    weight, bias = weight.to(dtype), bias.to(dtype) if biased else None
    before, name = x.clone(), str(dtype).removeprefix("torch.")
    got = build_layer_norm(LayerNormSpec(SIZE, 0.3, name, biased), None)(x, weight, bias)
    wide = x.double()
    centered = wide - wide.mean(-1, keepdim=True)
    exact = centered / (centered.square().mean(-1, keepdim=True) + 0.3).sqrt() * weight.double()
    exact = exact if bias is None else exact + bias.double()
    assert got.dtype == dtype and torch.equal(x, before)
    half_ulp = exact.abs() * (2.0**-8 if dtype == torch.bfloat16 else 0.0)
    assert ((got.double() - exact).abs() <= half_ulp * 1.001 + 2e-6).all()
