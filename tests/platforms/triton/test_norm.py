"""Norms, plain and quantized, against core's reference and against their parts."""

import pytest
import torch
from tests.platforms.triton.conftest import far_apart

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormSpec, NormSpec
from hotshoe.slots.reference import norm as plain
from hotshoe_triton import norm
from hotshoe_triton.quantize import INT8, Format, QuantizeRows

FP8 = Format(torch.float8_e4m3fn, 448.0)
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 3e-2}


def rows(
    count: int, size: int, dtype: str, rng: torch.Generator, gap: int = 5
) -> tuple[torch.Tensor, ...]:
    """Return x and residual, each with a row stride, and a weight."""
    kind = getattr(torch, dtype)
    wide = torch.randn(2, count, size + gap, generator=rng, device=rng.device).to(kind)
    weight = torch.randn(size, generator=rng, device=rng.device).to(kind)
    return wide[0, :, :size], wide[1, :, :size], weight


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [64, 100])
def test_norms_match_the_reference(
    facts: DeviceFacts, dtype: str, size: int, rng: torch.Generator
) -> None:
    x, residual, weight = rows(5, size, dtype, rng)
    tolerance = TOLERANCE[dtype]
    spec = NormSpec(size, 1e-5, dtype, 1.0)
    assert norm.supports(spec, facts).accepted
    expected = plain.build_norm(spec, facts)(x, weight)
    actual = norm.Norm(spec, facts)(x, weight)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

    add_spec = AddNormSpec(size, 1e-5, dtype, 0.0, 0.5)
    expected, total = plain.build_add_norm(add_spec, facts)(x, residual.clone(), weight)
    kept = x.clone()
    actual, new_residual = norm.AddNorm(add_spec, facts)(x, residual, weight)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(new_residual, total, rtol=tolerance, atol=tolerance)
    assert torch.equal(x, kept)
    assert actual.is_contiguous()


@pytest.mark.parametrize("format", [INT8, FP8], ids=["int8", "fp8"])
def test_quantized_norms_are_the_norm_then_the_quantization(
    facts: DeviceFacts, format: Format, rng: torch.Generator
) -> None:
    x, residual, weight = rows(4, 96, "bfloat16", rng)
    x[1] = 0
    quantize = QuantizeRows(96, format, facts)
    spec = NormSpec(96, 1e-5, "bfloat16")
    values, scale = norm.NormQuant(spec, format, facts)(x, weight)
    expected, expected_scale = quantize(norm.Norm(spec, facts)(x, weight))
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scale, expected_scale)
    assert scale[1] == 1

    add_spec = AddNormSpec(96, 1e-5, "bfloat16")
    normed, total = norm.AddNorm(add_spec, facts)(x, residual.clone(), weight)
    (values, scale), new_residual = norm.AddNormQuant(add_spec, format, facts)(x, residual, weight)
    expected, expected_scale = quantize(normed)
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scale, expected_scale)
    assert torch.equal(new_residual, total)


@pytest.mark.parametrize(("format", "size"), [(INT8, 256), (FP8, 384)], ids=["int8", "fp8"])
def test_groups_are_quantized_as_rows_of_their_own(
    facts: DeviceFacts, format: Format, size: int, rng: torch.Generator
) -> None:
    x, residual, weight = rows(4, size, "bfloat16", rng)
    x[1, :128] = 0
    x[2, 128:] *= 1e-30
    x[3, 5] = torch.nan
    quantize = QuantizeRows(128, format, facts)
    spec, add_spec = NormSpec(size, 1e-5, "bfloat16"), AddNormSpec(size, 1e-5, "bfloat16")
    normed, _ = norm.AddNorm(add_spec, facts)(x, residual.clone(), weight)
    for plain_rows, (values, scale) in (
        (norm.Norm(spec, facts)(x, weight), norm.NormQuant(spec, format, facts, 128)(x, weight)),
        (normed, norm.AddNormQuant(add_spec, format, facts, 128)(x, residual, weight)[0]),
    ):
        expected, expected_scale = quantize(plain_rows.view(-1, 128))
        assert torch.equal(values.view(torch.uint8), expected.view(4, size).view(torch.uint8))
        torch.testing.assert_close(
            scale, expected_scale.view(4, -1), rtol=0, atol=0, equal_nan=True
        )
        assert scale[3].isnan().all() and not scale[:3].isnan().any() and scale.stride(0) == 1


def test_empty_batch(facts: DeviceFacts) -> None:
    x = torch.empty(0, 64, device=facts.device)
    weight = torch.ones(64, device=facts.device)
    assert norm.Norm(NormSpec(64, 1e-5, "float32"), facts)(x, weight).shape == (0, 64)
    spec = AddNormSpec(64, 1e-5, "float32")
    assert norm.AddNorm(spec, facts)(x, x, weight)[0].shape == (0, 64)
    assert norm.NormQuant(NormSpec(64, 1e-5, "float32"), INT8, facts)(x, weight)[1].shape == (0,)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (NormSpec(1 << 17, 1e-5, "bfloat16"), "wider than 65536"),
        (NormSpec(64, 1e-5, "float64"), "element type float64"),
    ],
)
def test_refusals(facts: DeviceFacts, spec: NormSpec, reason: str) -> None:
    assert reason in norm.supports(spec, facts).reason


def test_rows_far_apart_need_64_bits(facts: DeviceFacts, rng: torch.Generator) -> None:
    """Of x, and of the residual, which is written."""
    x, residual, weight = rows(3, 64, "bfloat16", rng)
    operation = norm.AddNorm(AddNormSpec(64, 1e-5, "bfloat16"), facts)
    expected, total = operation(x, residual.clone(), weight)
    for far_x, far_residual in ((far_apart(x), residual.clone()), (x, far_apart(residual))):
        actual, new_residual = operation(far_x, far_residual, weight)
        torch.testing.assert_close(actual, expected)
        assert torch.equal(new_residual, total)
