"""Memory of weights: aligned, and apart."""

import itertools
import random

import pytest

import hotshoe_native
from hotshoe_cpu.pages import BLOCK_BYTES, LINE_BYTES, PAGE_BYTES, Blocks


@pytest.fixture
def native():
    return hotshoe_native.load()


def test_matrices_lie_apart_on_lines_of_their_own(native) -> None:
    blocks, rng = Blocks(), random.Random()
    sizes = [rng.randrange(1, BLOCK_BYTES // 2) for _ in range(12)] + [1, LINE_BYTES, 130]
    rng.shuffle(sizes)
    found = [blocks.take(native, size) for size in sizes]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t in found)
    assert [len(t) for t in found] == sizes
    assert all(first % LINE_BYTES == 0 for first, _ in spans)
    assert all(end <= first for (_, end), (first, _) in itertools.pairwise(spans))
    for number, tensor in enumerate(found):
        tensor.fill_(number)
    assert all(bool((t == number).all()) for number, t in enumerate(found))


def test_small_matrices_share_a_block_and_large_ones_begin_a_page(native) -> None:
    blocks = Blocks()
    first, second = blocks.take(native, 1000), blocks.take(native, 1000)
    assert first.data_ptr() % PAGE_BYTES == 0
    assert second.data_ptr() == first.data_ptr() + 1024
    large = blocks.take(native, BLOCK_BYTES)
    assert large.data_ptr() % PAGE_BYTES == 0
    assert blocks.take(native, 8).data_ptr() == second.data_ptr() + 1024
