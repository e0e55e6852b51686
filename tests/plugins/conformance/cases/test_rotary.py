"""The cases of rotary_and_cache find whoever rotates wrongly or writes elsewhere."""

import pytest
import torch

from hotshoe.slots import PLAIN_LAYOUT, KVLayout
from hotshoe.slots.reference.rotary import RotaryAndCache
from hotshoe_conformance.cases import SUITES


def test_the_reference_passes(defects) -> None:
    assert defects("rotary_and_cache", RotaryAndCache) == []


@pytest.mark.parametrize(
    "fields",
    [{"interleaved": False}, {"interleaved": True}, {"qk_norm_offset": 0.0}],
    ids=str,
)
def test_fields_that_are_overlooked(finds, blind, fields) -> None:
    assert finds("rotary_and_cache", blind("rotary_and_cache", **fields))


def no_norm(op, spec, qkv, positions, cos_sin, cache, slots, qk_norm):
    if qk_norm is not None:
        qk_norm = tuple(torch.ones_like(weight) for weight in qk_norm)
    return op(qkv, positions, cos_sin, cache, slots, qk_norm)


def next_position(op, spec, qkv, positions, cos_sin, cache, slots, qk_norm):
    return op(qkv, (positions + 1) % 4096, cos_sin, cache, slots, qk_norm)


def next_slot(op, spec, qkv, positions, cos_sin, cache, slots, qk_norm):
    return op(qkv, positions, cos_sin, cache, slots.roll(1), qk_norm)


def one_slot_more(op, spec, qkv, positions, cos_sin, cache, slots, qk_norm):
    q = op(qkv, positions, cos_sin, cache, slots, qk_norm)
    free = set(range(cache.shape[1] * spec.block_size)) - set(slots.tolist())
    cache.view(2, -1, spec.num_kv_heads * spec.head_dim)[1, min(free)] = 0
    return q


def unwritten(op, spec, qkv, positions, cos_sin, cache, slots, qk_norm):
    return op(qkv, positions, cos_sin, cache.clone(), slots, qk_norm)


def swapped(op, spec, qkv, positions, cos_sin, cache, slots, qk_norm):
    q = op(qkv, positions, cos_sin, cache, slots, qk_norm)
    cache.copy_(cache.flip(0))
    return q


@pytest.mark.parametrize(
    "change", [no_norm, next_position, next_slot, one_slot_more, unwritten, swapped]
)
def test_what_is_written_where(finds, wrapped, change) -> None:
    assert finds("rotary_and_cache", wrapped("rotary_and_cache", change))


def test_declared_layouts_are_tried_beside_the_plain_one() -> None:
    pairs = KVLayout("pairs", "hDtd", "hTdt", pack=2)
    grid = SUITES["rotary_and_cache"].grid([pairs])
    assert {setup.spec.layout for setup in grid} == {PLAIN_LAYOUT, pairs}
