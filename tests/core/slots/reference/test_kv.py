"""Paged caches in every layout: what is written at slots is read back by blocks."""

import random

import pytest
import torch

from hotshoe.slots import PLAIN_LAYOUT, KVLayout
from hotshoe.slots.reference.kv import PagedKV

LAYOUTS = [
    PLAIN_LAYOUT,
    KVLayout("heads first", "htd", "htd"),
    KVLayout("pairs of channels and tokens", "hDtd", "hTdt", 2),
    KVLayout("both split", "hTDtd", "hDTdt", 4),
    KVLayout("channels outermost", "dth", "htd"),
]
BLOCK, HEADS, DIM, BLOCKS = 8, 3, 12, 11


def random_kv(count):
    return torch.randn(2, count, HEADS, DIM)


def locate(layout, axes, token, head, channel):
    """Return the flat place of an element inside its block, from the layout's definition."""
    sizes = layout.block_shape(axes, BLOCK, HEADS, DIM)
    index = {"h": head, "t": token, "d": channel}
    for letter in "td":
        if letter.upper() in axes:
            index[letter.upper()], index[letter] = divmod(index[letter], layout.pack)
    place = 0
    for letter, size in zip(axes, sizes, strict=True):
        place = place * size + index[letter]
    return place


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_what_is_written_is_gathered(layout):
    cache = torch.full((2, BLOCKS, BLOCK * HEADS * DIM), float("nan"))
    paged = PagedKV(cache, layout, BLOCK, HEADS, DIM)
    blocks = random.sample(range(BLOCKS), 4)
    count = random.randint(3 * BLOCK + 1, 4 * BLOCK)
    k, v = random_kv(count)
    slots = torch.tensor([blocks[i // BLOCK] * BLOCK + i % BLOCK for i in range(count)])
    order = torch.randperm(count)
    paged.write(k[order], v[order], slots[order].int())
    got_k, got_v = paged.gather(torch.tensor(blocks, dtype=torch.int32), count)
    assert torch.equal(got_k, k) and torch.equal(got_v, v)
    assert cache.isfinite().sum() == 2 * count * HEADS * DIM


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_elements_lie_where_the_layout_says(layout):
    cache = torch.full((2, BLOCKS, BLOCK * HEADS * DIM), float("nan"))
    k, v = random_kv(1)
    slot = random.randrange(BLOCKS * BLOCK)
    paged = PagedKV(cache, layout, BLOCK, HEADS, DIM)
    paged.write(k, v, torch.tensor([slot], dtype=torch.int32))
    block, token = divmod(slot, BLOCK)
    for part, axes, value in ((0, layout.k_axes, k), (1, layout.v_axes, v)):
        for head in range(HEADS):
            for channel in range(DIM):
                place = locate(layout, axes, token, head, channel)
                assert cache[part, block, place] == value[0, head, channel]


def test_values_are_rounded_to_the_caches_type():
    cache = torch.zeros(2, 1, BLOCK * HEADS * DIM, dtype=torch.bfloat16)
    paged = PagedKV(cache, PLAIN_LAYOUT, BLOCK, HEADS, DIM)
    k, v = random_kv(BLOCK)
    paged.write(k, v, torch.arange(BLOCK, dtype=torch.int32))
    got_k, got_v = paged.gather(torch.tensor([0]), BLOCK)
    assert torch.equal(got_k, k.bfloat16()) and torch.equal(got_v, v.bfloat16())
