"""Quantized caches in cases: how they are held, and what numbers become in them."""

from dataclasses import replace

import pytest
import torch

from hotshoe.slots import AttentionSpec
from hotshoe_conformance.cases import kv

PLAIN = AttentionSpec(4, 2, 8, "bfloat16", "bfloat16", 4, 1.0)


def test_a_plain_cache_keeps_what_it_gets() -> None:
    numel, dtype, poison = kv.held_as(PLAIN)
    assert (numel, dtype) == (64, torch.bfloat16) and poison != poison
    k, v = torch.randn(2, 5, 2, 8).bfloat16()
    assert kv.as_kept(PLAIN, k, v) == (k, v)


@pytest.mark.parametrize("changes", kv.QUANTIZED, ids=str)
def test_a_quantized_cache_keeps_neighbors(changes: dict[str, str]) -> None:
    spec = replace(PLAIN, **changes)
    numel, dtype, poison = kv.held_as(spec)
    assert dtype == torch.uint8 and poison == 0xFF
    assert numel == 64 + 32 * (spec.kv_scales == "token")
    k, v = torch.randn(2, 5, 2, 8)
    kept = kv.as_kept(spec, k, v)
    for x, y in zip((k, v), kept, strict=True):
        assert 0 < (x - y).abs().max() <= kv.STEPS[spec.kv_dtype] * x.abs().max()
    again = kv.as_kept(spec, *kept)
    torch.testing.assert_close(again, kept, rtol=1e-6, atol=0)


def test_operations_get_the_scales_of_a_layer() -> None:
    class Operation:
        kv_scales = None

    for changes in kv.QUANTIZED:
        operation, spec = Operation(), replace(PLAIN, **changes)
        given = kv.give_scales(operation, spec, lambda tensor: tensor)
        assert given.tolist() == pytest.approx(kv.GIVEN)
        assert (operation.kv_scales is given) == (spec.kv_scales == "tensor")
