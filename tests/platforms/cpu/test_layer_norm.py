"""The layer norm against float64, on every build of the kernels."""

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LayerNormSpec
from hotshoe_cpu.layer_norm import LayerNorm, supports


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size", [1, 7, 64, 100, 1001])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_that_of_float64(
    facts: DeviceFacts, dtype: str, size: int, bias: bool, rng: torch.Generator
) -> None:
    kind = getattr(torch, dtype)
    x = (3 + torch.randn(7, size + 20, generator=rng)).to(kind)[:, :size]
    weight, added = torch.randn(2, size, generator=rng).to(kind)
    spec = LayerNormSpec(size, 1e-3, dtype, bias)
    assert supports(spec, facts).accepted
    actual = LayerNorm(spec, facts)(x, weight, added if bias else None)
    centered = x.double() - x.double().mean(-1, keepdim=True)
    scale = torch.rsqrt(centered.square().mean(-1, keepdim=True) + spec.eps)
    expected = centered * scale * weight.double() + (added.double() if bias else 0.0)
    # Sums err by so much of a mean of 3, which the scale of at most 32 multiplies.
    tolerance = {"float32": 1e-5, "bfloat16": 2**-8, "float16": 2**-10}[dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=2e-4)


def test_other_types_are_refused(facts: DeviceFacts) -> None:
    assert "float64" in supports(LayerNormSpec(8, 1e-5, "float64"), facts).reason
