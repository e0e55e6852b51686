"""Norm layers hand their weight and options to the slot."""

import torch

from hotshoe.layers import AddRMSNorm, RMSNorm
from hotshoe.slots import AddNormSpec, NormSpec


def test_norm(ctx):
    layer = RMSNorm(ctx, "n", 8, 0.5, weight_offset=1.0)
    weight = torch.randn(8)
    ctx.weights.feed("n.weight", weight)
    x = torch.randn(3, 8)
    expected = x * (x.square().mean(-1, keepdim=True) + 0.5).rsqrt() * (1 + weight)
    torch.testing.assert_close(layer(x), expected)
    assert ("rms_norm", NormSpec(8, 0.5, "float32", 1.0)) in ctx.selector.decisions


def test_add_norm(ctx):
    layer = AddRMSNorm(ctx, "n", 8, 0.5, weight_offset=0.0, residual_scale=0.3)
    weight = torch.randn(8)
    ctx.weights.feed("n.weight", weight)
    x, residual = torch.randn(2, 3, 8)
    total = residual + 0.3 * x
    got, new_residual = layer(x, residual)
    torch.testing.assert_close(new_residual, total)
    expected = total * (total.square().mean(-1, keepdim=True) + 0.5).rsqrt() * weight
    torch.testing.assert_close(got, expected)
    assert ("add_rms_norm", AddNormSpec(8, 0.5, "float32", 0.0, 0.3)) in ctx.selector.decisions


def test_the_weight_is_a_copy_in_the_models_type(ctx):
    layer = RMSNorm(ctx, "n", 8, 1e-6)
    weight = torch.randn(8, dtype=torch.float64)
    ctx.weights.feed("n.weight", weight)
    assert layer.weight.dtype == torch.float32
    layer = RMSNorm(ctx, "m", 8, 1e-6)
    mapped = torch.randn(8)
    ctx.weights.feed("m.weight", mapped)
    kept = mapped.clone()
    mapped.zero_()
    assert torch.equal(layer.weight, kept)
