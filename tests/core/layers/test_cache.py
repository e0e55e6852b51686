"""Layers of one place share memory, and each learns the view that it reads through."""

import pytest
import torch

from hotshoe.layers.cache import allocate_caches, assign_views, give_back, stored_as
from hotshoe.types import CacheGroup, CacheLayout, CachePart, CacheSpec
from hotshoe.types.layout import CachePool


def keys_and_values(dtype: str, scaled: bool = False) -> CacheSpec:
    parts = tuple(CachePart(name, "thd", (4, 2, 8), dtype, gap=3) for name in "kv")
    if scaled:
        parts += tuple(CachePart(f"{name}_scale", "ht", (2, 4), "float32") for name in "kv")
    return CacheSpec("full", 4, parts)


class Layer:
    """Records what it is told."""

    def __init__(self, operation: str) -> None:
        self.cache_spec = keys_and_values("float32")
        self.planner = (operation, lambda shape, view: operation)
        self.view = -1
        self.cache: object = None

    def allocate_cache(self, num_blocks: int) -> None:
        self.cache = [num_blocks]

    def share_cache(self, other: "Layer") -> None:
        self.cache = other.cache

    def free_cache(self) -> None:
        self.cache = None


def test_groups_of_a_pool_share_places_and_operations_share_views() -> None:
    layers = [Layer("a"), Layer("a"), Layer("b"), Layer("a")]
    spec = layers[0].cache_spec
    groups = CacheGroup(spec, (0, 2)), CacheGroup(spec, (1, 3))
    layout = CacheLayout(groups, (CachePool(2, 2 * spec.block_bytes),))
    views = assign_views(layers, layout)
    assert [view.group for view in views] == [0, 0, 1]
    assert [layer.view for layer in layers] == [0, 2, 1, 2]
    allocate_caches(layers, layout, [7])
    assert layers[0].cache == [8], "the null block is one more"
    assert layers[0].cache is layers[1].cache and layers[2].cache is layers[3].cache
    assert layers[0].cache is not layers[2].cache


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (keys_and_values("bfloat16"), (64, torch.bfloat16)),
        (keys_and_values("int8"), (64, torch.uint8)),
        (keys_and_values("float8_e4m3fn", scaled=True), (64 + 8 * 4, torch.uint8)),
    ],
)
def test_8_bit_numbers_are_bytes_before_their_scales(
    spec: CacheSpec, expected: tuple[int, torch.dtype]
) -> None:
    assert stored_as(spec) == expected


def test_memory_is_given_back_though_it_is_remembered() -> None:
    remembered = torch.zeros(1000)
    give_back(remembered)
    assert remembered.untyped_storage().nbytes() == 0
