"""Quantization of rows and of weights: against the definition, in both kinds of format."""

import pytest
import torch
from tests.platforms.triton.conftest import far_apart

from hotshoe.platform import DeviceFacts
from hotshoe.slots.reference.linear import quantize_rows
from hotshoe_triton.quantize import INT8, Format, QuantizeRows, format_of, quantize_weight

FP8 = Format(torch.float8_e4m3fn, 448.0)


def test_int8_rows_are_those_of_the_reference(facts: DeviceFacts, rng: torch.Generator) -> None:
    x = torch.randn(6, 80, generator=rng, device=facts.device)[:, :72]
    x[2] = 0
    x[4, 9] = float("nan")
    values, scale = QuantizeRows(72, INT8, facts)(x)
    expected, expected_scale = quantize_rows(x)
    numbers = expected_scale.isfinite()
    assert numbers.tolist() == [True, True, True, True, False, True]
    assert torch.equal(values[numbers], expected[numbers])
    # A GPU may divide by a constant as it multiplies by its inverse.
    torch.testing.assert_close(scale[numbers], expected_scale[numbers], rtol=1e-6, atol=0.0)
    assert scale[4].isnan()


@pytest.mark.parametrize("format", [INT8, FP8], ids=["int8", "fp8"])
def test_rows_and_weights_are_quantized_alike(
    facts: DeviceFacts, format: Format, rng: torch.Generator
) -> None:
    x = torch.randn(5, 64, generator=rng, device=facts.device).to(torch.bfloat16)
    spoilt = x.index_fill(1, torch.tensor([9], device=facts.device), torch.nan)
    assert QuantizeRows(64, format, facts)(spoilt)[1].isnan().all()
    assert quantize_weight(spoilt, format)[1].isnan().all()
    values, scale = QuantizeRows(64, format, facts)(x)
    expected, expected_scale = quantize_weight(x, format)
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scale, expected_scale)
    error = (values.float() * scale[:, None] - x.float()).abs()
    step = 0.5 if format is INT8 else 16.0  # half of the widest gap between values
    assert (error <= step * scale[:, None] * 1.001).all()
    assert (values.float().abs().amax(1) == format.limit).all()


@pytest.mark.parametrize("format", [INT8, FP8], ids=["int8", "fp8"])
@pytest.mark.parametrize("size", [2.0**-120, 1e-29, 3e-4, 1.0, 7e29, 2.0**120])
def test_quotients_are_rounded_once(
    facts: DeviceFacts, format: Format, size: float, rng: torch.Generator
) -> None:
    x = torch.randn(16, 512, generator=rng, device=facts.device).to(torch.bfloat16) * size
    x[:8, ::2] = x[:8].abs().amax(1, keepdim=True) / 2  # half of a step of int8
    values, scale = QuantizeRows(512, format, facts)(x)
    expected, expected_scale = quantize_weight(x, format)
    assert torch.equal(scale, expected_scale)
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))


def test_ties_go_to_the_even_neighbor(facts: DeviceFacts) -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]], device=facts.device)
    values, scale = QuantizeRows(6, INT8, facts)(x)
    assert scale.tolist() == [1.0]
    assert values[0].tolist() == [127, 0, 2, 2, 0, -2]


def test_formats_follow_the_architecture(facts: DeviceFacts) -> None:
    from dataclasses import replace

    def named(arch: str) -> object:
        found = format_of("fp8_e4m3", replace(facts, arch=arch))
        return found and (found.dtype, found.limit)

    assert named("sm_90") == named("gfx950") == (torch.float8_e4m3fn, 448.0)
    assert named("gfx942") == (torch.float8_e4m3fnuz, 240.0)
    assert named("sm_80") is named("gfx1100") is None
    assert format_of("int8", facts) is INT8
    assert format_of("mxfp4", facts) is None


def test_rows_far_apart_need_64_bits(facts: DeviceFacts, rng: torch.Generator) -> None:
    x = torch.randn(3, 64, generator=rng, device=facts.device).to(torch.bfloat16)
    quantize = QuantizeRows(64, INT8, facts)
    for actual, expected in zip(quantize(far_apart(x)), quantize(x), strict=True):
        assert torch.equal(actual, expected)


def test_empty_batch(facts: DeviceFacts) -> None:
    values, scale = QuantizeRows(64, INT8, facts)(torch.empty(0, 64, device=facts.device))
    assert values.shape == (0, 64)
    assert scale.shape == (0,)
