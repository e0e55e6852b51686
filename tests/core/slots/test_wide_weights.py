"""Quantized weights over a kernel for plain ones, against the reference for quantized ones."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec, accept, refuse, wide_weights
from hotshoe.slots.reference import linear as reference

HERE = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)
GROUPS = QuantSpec("fp8_e4m3", "group", 32)
SPEC = LinearSpec(64, 24, "float32", bias=True, weight=GROUPS)
FIXED, TOKEN = QuantSpec("fp8_e4m3", "tensor"), QuantSpec("fp8_e4m3", "token", dynamic=True)


def judge(spec: LinearSpec, facts: DeviceFacts):
    return accept(60, "plainly") if spec.weight is None else refuse("it is quantized")


def tensors() -> dict[str, list[torch.Tensor]]:
    return {
        "weight": [torch.randn(n, 64).to(torch.float8_e4m3fn) for n in (16, 8)],
        "weight_scale": [torch.rand(n, 2) + 0.5 for n in (16, 8)],
        "input_scale": [torch.tensor([0.01]), torch.tensor([0.03])],
        "bias": [torch.randn(16), torch.randn(8)],
    }


@pytest.mark.parametrize("activation", [None, FIXED, TOKEN])
def test_products_are_the_references(activation: QuantSpec | None) -> None:
    made = wide_weights.linear if activation is None else wide_weights.rounding
    spec = replace(SPEC, activation=activation)
    ours, theirs = made(reference.Linear)(spec, HERE), reference.Linear(spec, HERE)
    for _ in range(2):
        given, x = tensors(), torch.randn(5, 64)
        ours.load(given)
        theirs.load(given)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-4)
    assert ours.nbytes() == 24 * 64 * 4 + 24 * 4
    assert ("input_scale" in ours.state()) == (activation == FIXED)


def test_each_takes_its_own_and_none_what_its_kernel_cannot_take() -> None:
    alone, rounding = wide_weights.supports(judge), wide_weights.supports_rounding(judge)
    rounded = replace(SPEC, activation=TOKEN)
    verdict = alone(replace(SPEC, dtype="bfloat16"), HERE)
    assert verdict.score == wide_weights.SCORE and "2 bytes a weight" in verdict.reason
    assert wide_weights.holds_plain(verdict) and not wide_weights.holds_plain(accept(1, "native"))
    assert rounding(rounded, HERE).accepted and not alone(rounded, HERE).accepted
    assert not rounding(SPEC, HERE).accepted
    four_bits = QuantSpec("fp4_e2m1", "group", 16, dynamic=True)
    assert "4-bit floats" in rounding(replace(SPEC, activation=four_bits), HERE).reason
    beside = replace(
        SPEC, weight=QuantSpec("int4", "channel"), activation=replace(TOKEN, format="int8")
    )
    assert "int4 is multiplied packed" in rounding(beside, HERE).reason
    for weight in (None, QuantSpec("mxfp4", "group", 32), replace(GROUPS, packing="words")):
        assert not alone(replace(SPEC, weight=weight), HERE).accepted
    never = wide_weights.supports(lambda spec, facts: refuse("not today"))
    assert never(SPEC, HERE).reason == "not today"
