"""Layer norms against core's reference: types, strides, means far from 0, no bias."""

import pytest
import torch
from tests.platforms.triton.conftest import device_facts
from tests.platforms.triton.test_norm import TOLERANCE, rows

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LayerNormSpec
from hotshoe.slots.reference.norm import build_layer_norm
from hotshoe_triton.layer_norm import LayerNorm, supports
from hotshoe_triton.norm import MAX_SIZE


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("size", "bias"), [(64, True), (100, False)])
def test_rows_match_the_reference(
    facts: DeviceFacts, dtype: str, size: int, bias: bool, rng: torch.Generator
) -> None:
    x, shifts, weight = rows(5, size, dtype, rng)
    x += 20.0 * shifts[:, :1]
    added = shifts[0].contiguous() if bias else None
    spec = LayerNormSpec(size, 1e-5, dtype, bias)
    assert supports(spec, facts).accepted
    kept = x.clone()
    found = LayerNorm(spec, facts)(x, weight, added)
    expected = build_layer_norm(spec, facts)(x, weight, added)
    tolerance = max(TOLERANCE[dtype], 1e-4)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(x, kept) and found.is_contiguous()
    assert LayerNorm(spec, facts)(x[:0], weight, added).shape == (0, size)


def test_rows_that_no_program_holds_are_refused() -> None:
    verdict = supports(LayerNormSpec(MAX_SIZE + 1, 1e-5, "float32"), device_facts("sm_90"))
    assert f"wider than {MAX_SIZE}" in verdict.reason
