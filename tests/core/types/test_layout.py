"""Cache groups and pools: who shares a table, who shares memory, and how little of it is empty."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.types import CacheLayout
from hotshoe.types.cache import CachePart, CacheSpec, held_blocks
from hotshoe.types.layout import WASTE, lay_out

STEP = 64
PARTS = [(CachePart("k", "td", (16, width), "bfloat16"),) for width in (4, 8)]
SPECS = [
    CacheSpec(kind, 16, parts, window)
    for parts in PARTS
    for kind, window in (("full", None), ("window", 24), ("window", 100))
]


def bytes_held(layout, num_tokens: int, step: int = STEP) -> int:
    """Return the bytes of the blocks that one sequence holds."""
    return sum(
        held_blocks(group.spec, num_tokens, step) * layout.pools[group.pool].block_bytes
        for group in layout.groups
    )


def bytes_of_layers(specs, num_tokens: int) -> int:
    """Return what the layers of one sequence keep, each by itself."""
    return sum(held_blocks(spec, num_tokens, STEP) * spec.block_bytes for spec in specs)


@given(st.lists(st.sampled_from(SPECS), min_size=1, max_size=40), st.sampled_from([64, 512, 4096]))
def test_every_layer_has_one_place(specs, max_model_len) -> None:
    layout = lay_out(specs, max_model_len, STEP)
    assert sorted(i for group in layout.groups for i in group.layers) == list(range(len(specs)))
    for group in layout.groups:
        assert {specs[i] for i in group.layers} == {group.spec}
        pool = layout.pools[group.pool]
        assert len(group.layers) <= pool.places
        assert pool.block_bytes == pool.places * group.spec.block_bytes
    for number in range(len(layout.pools)):
        empty, places = layout.empty_places(number)
        assert 0 <= empty < places
    held = bytes_held(layout, max_model_len)
    assert held <= bytes_of_layers(specs, max_model_len) * (1 + WASTE)


def test_blocks_of_other_parts_come_from_another_pool() -> None:
    layout = lay_out([SPECS[0], SPECS[3], SPECS[0], SPECS[1]], 4096, STEP)
    pools = {group.spec.parts: group.pool for group in layout.groups}
    assert len(pools) == len(layout.pools) == 2
    assert layout.empty_places(pools[PARTS[1]]) == (0, 1)


FULL, WINDOW, OTHER = SPECS[0], SPECS[1], SPECS[3]


def part_of(layout: CacheLayout, own: range) -> tuple[list[tuple[int, ...]], list[tuple[int, int]]]:
    part = layout.of_layers(own)
    assert [(g.spec, g.pool) for g in part.groups] == [(g.spec, g.pool) for g in layout.groups]
    return [g.layers for g in part.groups], [(p.places, p.block_bytes) for p in part.pools]


def test_a_stage_keeps_every_group_and_pool_with_its_own_layers() -> None:
    layout = lay_out([WINDOW, WINDOW, FULL, WINDOW, WINDOW, FULL, OTHER], 4096, STEP)
    assert part_of(layout, range(7)) == (
        [g.layers for g in layout.groups],
        [(p.places, p.block_bytes) for p in layout.pools],
    )
    by_spec = {group.spec: i for i, group in enumerate(layout.groups)}
    layers, pools = part_of(layout, range(2, 4))
    assert layers[by_spec[FULL]] == (0,)
    assert layers[by_spec[OTHER]] == ()
    assert [1 for group in layers for layer in group if layer == 1] == [1]
    assert pools == [(1, FULL.block_bytes), (0, 0)]


@pytest.mark.parametrize("step_tokens", [2048, 8192, 1 << 20])
def test_windows_of_gemma_3_1b_save_two_thirds(step_tokens: int) -> None:
    """32,768 tokens of 26 layers, each sixth of which sees them all, however large a step is."""
    parts = tuple(CachePart(name, "thd", (16, 1, 256), "bfloat16") for name in "kv")
    full, window = CacheSpec("full", 16, parts), CacheSpec("window", 16, parts, 512)
    specs = [full if i % 6 == 5 else window for i in range(26)]
    layout = lay_out(specs, 32_768, step_tokens)
    taken = sum(
        held_blocks(group.spec, 32_768, step_tokens) * layout.pools[group.pool].block_bytes
        for group in layout.groups
    )
    assert taken <= 0.35 * 26 * 32_768 // 16 * full.block_bytes
