"""Layers with a cache, seen by the worker: their memory, and the views that a step gives them.

A *view* is one group's block table and slots, and what an operation has prepared from them. Layers
of one group that ask the same operation share a view, so that it is prepared once a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from hotshoe.slots import CacheView, StepShape
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.types.cache import QUANTIZED, CacheSpec
from hotshoe.types.layout import CacheLayout

Prepare: TypeAlias = Callable[[StepShape, CacheView], Any]


class CacheLayer(Protocol):
    """A layer that keeps keys and values, latents or states of past tokens.

    Attributes:
        cache_spec: The kind, and the arrays of a block.
        planner: A key that equal operations share, and the function that prepares their view.
        view: Index of its view in `ForwardBatch.views`.
        cache: Its memory after `allocate_cache`: the tensor [num_blocks, ...] of a cache of one
            part, an iterable of such tensors for a cache of several.
        kv_scales: [2] float32, the scales of all keys and of all values; None for other scales.
    """

    cache_spec: CacheSpec
    planner: tuple[Hashable, Prepare]
    view: int
    cache: Any
    kv_scales: Tensor | None

    def allocate_cache(self, num_blocks: int) -> None:
        """Take memory for `num_blocks` blocks, the null block included."""
        ...

    def share_cache(self, other: Any) -> None:
        """Use the memory of another layer, whose blocks have equal parts."""
        ...

    def cache_memory(self) -> Sequence[Tensor]:
        """Return tensors over all of the memory, other layers' part of it included."""
        ...

    def free_cache(self) -> None:
        """Give the memory back."""
        ...


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """The source of a view: the number of a group, and the function that prepares the view."""

    group: int
    prepare: Prepare


def assign_views(layers: Sequence[CacheLayer], layout: CacheLayout) -> tuple[ViewPlan, ...]:
    """Tell every layer its view, and return them all."""
    numbers: dict[tuple[int, Hashable], int] = {}
    views: list[ViewPlan] = []
    for number, group in enumerate(layout.groups):
        for layer in (layers[i] for i in group.layers):
            key, prepare = layer.planner
            if (number, key) not in numbers:
                numbers[number, key] = len(views)
                views.append(ViewPlan(number, prepare))
            layer.view = numbers[number, key]
    return tuple(views)


def allocate_caches(
    layers: Sequence[CacheLayer], layout: CacheLayout, num_blocks: Sequence[int]
) -> None:
    """Take memory for every pool, its null block included, and give each layer its place.

    Args:
        num_blocks: Of each pool, without the null block.
    """
    owners: dict[tuple[int, int], CacheLayer] = {}
    for group in layout.groups:
        for place, layer in enumerate(layers[i] for i in group.layers):
            owner = owners.setdefault((group.pool, place), layer)
            if owner is layer:
                layer.allocate_cache(num_blocks[group.pool] + 1)
            else:
                layer.share_cache(owner)


def share_keys(layers: Sequence[CacheLayer]) -> bool:
    """Tell whether all read keys of one sequence once for several requests (`StepShape.spans`)."""
    return all(getattr(layer, "shares_keys", False) for layer in layers)


def memory_of(layers: Sequence[CacheLayer]) -> list[torch.UntypedStorage]:
    """Return the memory of caches, each piece once."""
    storages = (t.untyped_storage() for layer in layers for t in layer.cache_memory())
    return list({storage.data_ptr(): storage for storage in storages}.values())


def free_caches(layers: Sequence[CacheLayer]) -> None:
    """Give back the memory of those caches that have any."""
    for layer in layers:
        if hasattr(layer, "cache"):
            layer.free_cache()


def stored_as(spec: CacheSpec) -> tuple[int, torch.dtype]:
    """Return how a cache of keys and values is held: the elements of a block's keys, or of its
    values, and their type. 8-bit numbers are held as bytes, as their scales lie behind them."""
    keys, dtype = spec.parts[0], spec.parts[0].dtype
    if dtype not in QUANTIZED.values():
        return math.prod(keys.shape), torch_dtype(dtype)
    return sum(replace(part, gap=0).nbytes for part in spec.parts[::2]), torch.uint8


def give_back(cache: Tensor) -> None:
    """Free a cache's memory though others may remember the tensor, which is empty from then on."""
    storage = cache.untyped_storage()
    if storage.resizable():
        storage.resize_(0)
