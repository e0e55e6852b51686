"""Quantized weights held as plain numbers, against core's reference."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference.linear import FORMATS
from hotshoe.slots.reference.linear import Linear as Reference
from hotshoe_cpu import widened

INPUTS, SIZES = 96, (33, 15)
WEIGHTS = [
    QuantSpec("fp8_e4m3", "channel"),
    QuantSpec("fp8_e4m3", "block", block_shape=(32, 64)),
    QuantSpec("int8", "group", 32, symmetric=False),
    QuantSpec("int4", "group", 16, permuted=True),
    QuantSpec("fp8_e4m3", "channel", online=True),
    QuantSpec("int4", "group", 32, online=True),
]
#: By token, by group, and fixed.
ACTIVATIONS = ({"granularity": "token"}, {"granularity": "group", "group_size": 32}, None)


def spec_of(weight: QuantSpec, activation: QuantSpec | None, dtype: str, bias: bool) -> LinearSpec:
    return LinearSpec(INPUTS, sum(SIZES), dtype, bias, weight, activation)


def stored(spec: LinearSpec) -> dict[str, list[Tensor]]:
    quant = spec.weight
    assert quant is not None
    tensors: dict[str, list[Tensor]] = {}
    if quant.online:
        tensors["weight"] = [torch.randn(n, INPUTS) for n in SIZES]
    else:
        dtype, largest = FORMATS[quant.format]
        draw = [(torch.randn(n, INPUTS) * largest / 3).clamp(-largest, largest) for n in SIZES]
        tensors["weight"] = [
            d.round().to(dtype) if quant.format != "fp8_e4m3" else d.to(dtype) for d in draw
        ]
        height, width = quant.block_shape or (1, quant.group_size or INPUTS)
        shapes = [(-(-n // height), -(-INPUTS // width)) for n in SIZES]
        tensors["weight_scale"] = [(torch.rand(s) + 0.5) / largest for s in shapes]
        if not quant.symmetric:
            tensors["weight_zero_point"] = [torch.randint(-9, 9, s) for s in shapes]
    if quant.permuted:
        tensors["weight_order"] = [torch.randperm(INPUTS).int()] * len(SIZES)
    if spec.activation is not None and not spec.activation.dynamic:
        tensors["input_scale"] = [torch.tensor([0.01]), torch.tensor([0.02])]
    if spec.bias:
        tensors["bias"] = [torch.randn(n) for n in SIZES]
    return tensors


def cases() -> list[tuple[QuantSpec, QuantSpec | None]]:
    found: list[tuple[QuantSpec, QuantSpec | None]] = [(weight, None) for weight in WEIGHTS]
    for weight in WEIGHTS[:2]:
        for values in ACTIVATIONS:
            quant = QuantSpec("fp8_e4m3", "tensor")
            found.append((weight, replace(quant, dynamic=True, **values) if values else quant))
    return found


@pytest.mark.parametrize(("weight", "activation"), cases(), ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matches_the_reference(facts: DeviceFacts, weight, activation, dtype: str) -> None:
    spec = spec_of(weight, activation, dtype, bias=dtype == "float32")
    first = widened.supports(spec, facts), widened.Linear
    second = widened.supports_rounding(spec, facts), widened.Rounding
    [(verdict, build)] = [found for found in (first, second) if found[0].accepted]
    assert f"{4 if dtype == 'float32' else 2} bytes a weight" in verdict.reason
    reference, actual = Reference(spec, facts), build(spec, facts)
    assert actual.state() == {}
    tensors = stored(spec)
    for operation in (reference, actual):
        operation.load(tensors)
    for rows in (0, 1, 5, 40):
        x = torch.randn(rows, INPUTS).to(getattr(torch, dtype))
        got, want = actual(x), reference(x)
        assert got.dtype == want.dtype
        # Weights, and what is left of x, are rounded to the model's type.
        scale = (INPUTS**0.5) * (2e-6 if dtype == "float32" else 2e-2)
        torch.testing.assert_close(got, want, rtol=1e-5 if dtype == "float32" else 1e-2, atol=scale)
    held = [tensor.data_ptr() for tensor in actual.state().values()]
    actual.load(stored(spec))
    assert [tensor.data_ptr() for tensor in actual.state().values()] == held
    assert actual.nbytes() >= sum(SIZES) * INPUTS * (4 if dtype == "float32" else 2)


@pytest.mark.parametrize("quant", [None, QuantSpec("mxfp4", "group", 32)])
def test_refusals(facts: DeviceFacts, quant) -> None:
    spec = LinearSpec(INPUTS, 8, "bfloat16", weight=quant)
    assert not widened.supports(spec, facts).accepted
    assert not widened.supports_rounding(spec, facts).accepted
    half = LinearSpec(INPUTS, 8, "float16", weight=WEIGHTS[0])
    assert not widened.supports(half, facts).accepted
