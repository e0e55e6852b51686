"""Sizes of weights from specifications: against numbers worked out by hand, and what is held."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference.linear import Linear
from hotshoe.slots.sizes import linear_bytes, plain_bytes, reference_bytes

FACTS = DeviceFacts("null", "cpu", "processor", "x", 0, 1)
WITH_ZEROS = QuantSpec("int4", "group", group_size=16, symmetric=False)


@pytest.mark.parametrize(
    ("weight", "size"),
    [
        (None, 64 * 32 * 2),
        (QuantSpec("int8", "channel"), 64 * 32 + 32 * 4),
        (QuantSpec("fp8_e4m3", "tensor"), 64 * 32 + 4),
        (QuantSpec("int4", "group", group_size=16), 64 * 32 // 2 + 64 * 32 // 16 * 4),
        (WITH_ZEROS, 64 * 32 // 2 + 64 * 32 // 16 * 8),
        (QuantSpec("fp4_e2m1", "group", group_size=16), 64 * 32 // 2 + 64 * 32 // 16),
        (QuantSpec("fp8_e4m3", "block", block_shape=(16, 16)), 64 * 32 + 8 * 4),
        (QuantSpec("fp8_e4m3", "block", block_shape=(128, 128)), 64 * 32 + 4),
    ],
)
def test_matrices(weight: QuantSpec | None, size: int) -> None:
    spec = LinearSpec(64, 32, "bfloat16", weight=weight)
    assert linear_bytes(spec) == size
    biased = LinearSpec(64, 32, "bfloat16", weight=weight, bias=True)
    assert linear_bytes(biased) == size + 32 * 2
    assert plain_bytes(biased, FACTS) == 64 * 32 * 2 + 32 * 2


def test_what_a_kernel_holds_otherwise() -> None:
    spec = LinearSpec(64, 32, "bfloat16", weight=QuantSpec("fp4_e2m1", "group", group_size=16))
    assert linear_bytes(spec, 8, 32) == 64 * 32 + 64 * 32 // 16 * 4
    zeros = replace(spec, weight=WITH_ZEROS)
    assert linear_bytes(zeros, scale_bits=16, zero_bits=0) == 64 * 32 // 2 + 64 * 32 // 16 * 2


@pytest.mark.parametrize(
    "weight",
    [
        None,
        QuantSpec("int8", "channel", symmetric=False),
        WITH_ZEROS,
        replace(WITH_ZEROS, permuted=True),
        QuantSpec("fp8_e4m3", "block", block_shape=(16, 48)),
    ],
)
def test_what_the_reference_holds(weight: QuantSpec | None) -> None:
    spec = LinearSpec(64, 32, "bfloat16", weight=weight, bias=True)
    columns = {"group": 4, "block": 2}.get(weight.granularity if weight else "", 1)
    scales = torch.ones(2 if weight and weight.granularity == "block" else 32, columns)
    tensors = {
        "weight": [torch.zeros(32, 64, dtype=torch.int8)],
        "weight_scale": [scales],
        "weight_zero_point": [scales],
        "weight_order": [torch.arange(64)],
        "bias": [torch.zeros(32)],
    }
    operation = Linear(spec, FACTS)
    operation.load(tensors)
    assert operation.nbytes() == reference_bytes(spec, FACTS)
