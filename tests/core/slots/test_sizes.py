"""Sizes of weights from specifications: against numbers worked out by hand."""

import pytest

from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.sizes import linear_bytes


@pytest.mark.parametrize(
    ("weight", "size"),
    [
        (None, 64 * 32 * 2),
        (QuantSpec("int8", "channel"), 64 * 32 + 32 * 4),
        (QuantSpec("fp8_e4m3", "tensor"), 64 * 32 + 4),
        (QuantSpec("int4", "group", group_size=16), 64 * 32 // 2 + 64 * 32 // 16 * 4),
        (QuantSpec("fp4_e2m1", "group", group_size=16), 64 * 32 // 2 + 64 * 32 // 16),
        (QuantSpec("fp8_e4m3", "block", block_shape=(16, 16)), 64 * 32 + 8 * 4),
    ],
)
def test_matrices(weight: QuantSpec | None, size: int) -> None:
    spec = LinearSpec(64, 32, "bfloat16", weight=weight)
    assert linear_bytes(spec) == size
    biased = LinearSpec(64, 32, "bfloat16", weight=weight, bias=True)
    assert linear_bytes(biased) == size + 32 * 2
