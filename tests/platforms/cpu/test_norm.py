"""Norm adapters against core's references."""

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormSpec, NormSpec
from hotshoe.slots.reference.norm import build_add_norm, build_norm
from hotshoe_cpu import norm


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_norms_match_the_references(facts: DeviceFacts, dtype: str, rng: torch.Generator) -> None:
    kind = getattr(torch, dtype)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    wide = torch.randn(7, 120, generator=rng).to(kind)
    x, residual = wide[:, :100], torch.randn(7, 100, generator=rng).to(kind)
    weight = torch.randn(100, generator=rng).to(kind)
    spec = NormSpec(100, 1e-5, dtype, 1.0)
    assert norm.supports(spec, facts).accepted
    actual = norm.Norm(spec, facts)(x, weight)
    expected = build_norm(spec, facts)(x, weight)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

    added = AddNormSpec(100, 1e-5, dtype, 0.0, 0.5)
    expected, expected_residual = build_add_norm(added, facts)(x, residual, weight)
    actual, new_residual = norm.AddNorm(added, facts)(x, residual, weight)
    torch.testing.assert_close(new_residual, expected_residual, rtol=0, atol=0)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert new_residual is residual


def test_other_types_are_refused(facts: DeviceFacts) -> None:
    assert "float64" in norm.supports(NormSpec(8, 1e-5, "float64"), facts).reason
