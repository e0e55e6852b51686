"""Gated activations, plain and quantized, against core's reference."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import far_apart

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedActivationSpec, QuantSpec
from hotshoe.slots.reference import activation as plain
from hotshoe_triton import activation
from hotshoe_triton.quantize import INT8, QuantizeRows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", activation.ACTIVATIONS)
def test_matches_the_reference(
    facts: DeviceFacts, kind: str, dtype: str, rng: torch.Generator
) -> None:
    spec = GatedActivationSpec(1100, kind, dtype)
    assert activation.supports(spec, facts).accepted
    x = torch.randn(3, 2210, generator=rng, device=facts.device).to(getattr(torch, dtype)) * 4
    x = x[:, :2200]
    expected = plain.build(spec, facts)(x)
    actual = activation.GatedActivation(spec, facts)(x)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_quantized_is_the_activation_then_the_quantization(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    spec = GatedActivationSpec(90, "silu", "bfloat16")
    x = torch.randn(4, 180, generator=rng, device=facts.device).to(torch.bfloat16)
    values, scale = activation.GatedActivationQuant(spec, INT8, facts)(x)
    expected = QuantizeRows(90, INT8, facts)(activation.GatedActivation(spec, facts)(x))
    assert torch.equal(values, expected[0])
    assert torch.equal(scale, expected[1])


def test_groups_are_the_activation_then_the_quantization(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    spec = GatedActivationSpec(
        1152, "silu", "bfloat16", QuantSpec("int8", "group", 128, dynamic=True)
    )
    assert activation.supports(spec, facts).accepted
    x = torch.randn(3, 2304, generator=rng, device=facts.device).to(torch.bfloat16)
    x[0, :128], x[1, 1151] = 0, torch.nan
    values, scale = activation.build(spec, facts)(x)
    plain_rows = activation.GatedActivation(replace(spec, quant=None), facts)(x)
    expected, wanted = QuantizeRows(128, INT8, facts)(plain_rows.view(-1, 128))
    assert torch.equal(values, expected.view(3, -1))
    torch.testing.assert_close(scale, wanted.view(3, -1), rtol=0, atol=0, equal_nan=True)
    assert scale[0, 0] == 1 and scale[1].isnan().tolist() == [False] * 8 + [True]


def test_quantized_rows_longer_than_a_block(facts: DeviceFacts, rng: torch.Generator) -> None:
    size = activation.MAX_BLOCK + 100
    spec = GatedActivationSpec(size, "silu", "float32")
    x = torch.randn(1, 2 * size, generator=rng, device=facts.device)
    values, scale = activation.GatedActivationQuant(spec, INT8, facts)(x)
    expected = activation.GatedActivation(spec, facts)(x)
    assert ((values * scale[:, None] - expected).abs() <= 0.5001 * scale).all()


@pytest.mark.parametrize("at", [5, activation.MAX_BLOCK + 5])
def test_nan_in_any_part_of_a_row_reaches_its_scale(facts: DeviceFacts, at: int) -> None:
    size = activation.MAX_BLOCK + 100
    x = torch.ones(3, 2 * size, device=facts.device)
    x[1, at] = torch.nan
    operation = activation.GatedActivationQuant(
        GatedActivationSpec(size, "silu", "float32"), INT8, facts
    )
    assert operation(x)[1].isnan().tolist() == [False, True, False]


def test_empty_batch_and_refusals(facts: DeviceFacts) -> None:
    spec = GatedActivationSpec(64, "silu", "float32")
    x = torch.empty(0, 128, device=facts.device)
    assert activation.GatedActivation(spec, facts)(x).shape == (0, 64)
    assert activation.GatedActivationQuant(spec, INT8, facts)(x)[0].shape == (0, 64)
    relu = GatedActivationSpec(64, "relu", "float32")
    assert "activation relu" in activation.supports(relu, facts).reason


def test_rows_far_apart_need_64_bits(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = GatedActivationSpec(64, "silu", "bfloat16")
    x = torch.randn(3, 128, generator=rng, device=facts.device).to(torch.bfloat16)
    plain_op = activation.GatedActivation(spec, facts)
    assert torch.equal(plain_op(far_apart(x)), plain_op(x))
    quantized = activation.GatedActivationQuant(spec, INT8, facts)
    for actual, expected in zip(quantized(far_apart(x)), quantized(x), strict=True):
        assert torch.equal(actual, expected)
