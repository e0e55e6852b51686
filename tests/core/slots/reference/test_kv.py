"""Paged caches in every layout: what is written at slots is read back by blocks."""

import random

import pytest
import torch

from hotshoe.slots import PLAIN_LAYOUT, KVLayout
from hotshoe.slots.reference.kv import LIMITS, PagedKV, QuantizedKV

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


#: Of a value, half a step between neighbors; of the head's largest, where steps are equal.
HALF_STEPS = {"int8": (0.0, 0.5 / 127), "float8_e4m3fn": (2**-4, 2**-10 / 448)} | {
    "float8_e5m2": (2**-3, 2**-17 / 57344)
}
FORMS = [(dtype, scales) for dtype in LIMITS for scales in ("tensor", "token")]


def quantized(dtype, scales, layout=PLAIN_LAYOUT, given=None):
    numel = BLOCK * HEADS * DIM + 4 * BLOCK * HEADS * (scales == "token")
    cache = torch.full((2, BLOCKS, numel), 0xFF, dtype=torch.uint8)
    return cache, QuantizedKV(cache, dtype, layout, (BLOCK, HEADS, DIM), scales, given)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize(("dtype", "scales"), FORMS)
def test_8_bits_are_the_nearest(dtype, scales, layout):
    k, v = random_kv(40) * torch.logspace(-3, 1, 40).view(-1, 1, 1)
    largest = torch.stack((k, v)).abs().amax()
    given = (torch.tensor([1.5, 2.0]) * largest / LIMITS[dtype]).float()
    cache, paged = quantized(dtype, scales, layout, given)
    blocks = torch.tensor(random.sample(range(BLOCKS), 5))
    slots = (blocks[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
    order = torch.randperm(40)
    paged.write(k[order].bfloat16().float(), v[order].bfloat16().float(), slots[order].int())
    own, steps = HALF_STEPS[dtype]
    for x, got, scale in zip((k, v), paged.gather(blocks, 40), given, strict=True):
        x = x.bfloat16().double()
        reach = x.abs().amax(-1, keepdim=True) if scales == "token" else scale * LIMITS[dtype]
        bound = (own * x.abs()).maximum(steps * reach) * (1 + 1e-5)
        assert got.dtype == torch.float32 and ((got - x).abs() <= bound).all()
    others = [n for n in range(BLOCKS) if n not in blocks]
    assert (cache[:, others] == 0xFF).all()


@pytest.mark.parametrize(("dtype", "scales"), FORMS)
def test_of_8_bits_zeros_are_zeros_and_too_large_is_the_limit(dtype, scales):
    _, paged = quantized(dtype, scales, given=torch.ones(2))
    k = torch.zeros(1, HEADS, DIM)
    k[0, 0, 0] = 1e6
    paged.write(k, -k, torch.tensor([0]))
    got_k, got_v = paged.gather(torch.tensor([0]), 1)
    expected = torch.zeros(1, HEADS, DIM)
    expected[0, 0, 0] = 1e6 if scales == "token" else LIMITS[dtype]
    torch.testing.assert_close(got_k, expected)
    torch.testing.assert_close(got_v, -expected)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_of_8_bits_a_head_that_is_not_finite_stays_so_alone(dtype, bad):
    _, paged = quantized(dtype, "token")
    k, v = random_kv(2)
    k[0, 1, 3] = bad
    paged.write(k, v, torch.tensor([0, 1]))
    got, _ = paged.gather(torch.tensor([0]), 2)
    assert not got[0, 1].isfinite().any()
    assert got[0, [0, 2]].isfinite().all() and got[1].isfinite().all()
