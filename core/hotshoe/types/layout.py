"""How the caches of a model's layers share memory.

Groups whose blocks have equal parts share a *pool*: a block id then addresses the same bytes in
whichever group's layers it is used for. So every group of a pool has the same number of *places*,
one for each of its layers; where layers do not divide evenly, some stay empty.

Every pool has one block more than its number of blocks, the *null block*, whose id is that number.
No sequence owns it. Padding is written there, and table entries lead there that no query reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hotshoe.types.cache import CacheGroup, CacheSpec, held_blocks

#: Empty places are fine up to this share of the least memory, as fewer groups cost less time.
WASTE = 0.1


@dataclass(frozen=True, slots=True)
class CachePool:
    """Memory that groups share.

    Attributes:
        places: Layers that a block has memory for.
        block_bytes: Of one block in all places.
    """

    places: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Every group and pool of a model. Equal on all ranks but for bytes."""

    groups: tuple[CacheGroup, ...]
    pools: tuple[CachePool, ...]

    def of_layers(self, own: range) -> CacheLayout:
        """Return the layout of a part of the layers, numbered from 0; groups and pools stay."""
        groups = tuple(
            replace(group, layers=tuple(i - own.start for i in group.layers if i in own))
            for group in self.groups
        )
        pools = []
        for number, pool in enumerate(self.pools):
            places = max(len(group.layers) for group in groups if group.pool == number)
            pools.append(CachePool(places, pool.block_bytes // pool.places * places))
        return CacheLayout(groups, tuple(pools))

    def empty_places(self, pool: int) -> tuple[int, int]:
        """Return how many places no layer uses, over all groups of a pool, and how many exist."""
        groups = [group for group in self.groups if group.pool == pool]
        every = self.pools[pool].places * len(groups)
        return every - sum(len(group.layers) for group in groups), every


def lay_out(specs: Sequence[CacheSpec], max_model_len: int, step_tokens: int) -> CacheLayout:
    """Form groups and pools.

    Args:
        specs: Of every layer with a cache, in the order of layers.
        max_model_len: Longest sequence, for which memory is weighed.
        step_tokens: Most tokens of a step.
    """
    by_parts: dict[object, dict[CacheSpec, list[int]]] = {}
    for layer, spec in enumerate(specs):
        key = (spec.block_tokens, spec.parts)
        by_parts.setdefault(key, {}).setdefault(spec, []).append(layer)
    groups: list[CacheGroup] = []
    pools: list[CachePool] = []
    for number, members in enumerate(by_parts.values()):
        counts = {
            spec: (len(layers), held_blocks(spec, max_model_len, step_tokens))
            for spec, layers in members.items()
        }
        places = _places(list(counts.values()))
        for spec, layers in members.items():
            parts = -(-len(layers) // places)
            ends = [len(layers) * i // parts for i in range(parts + 1)]
            groups += [
                CacheGroup(spec, tuple(layers[ends[i] : ends[i + 1]]), number) for i in range(parts)
            ]
        pools.append(CachePool(places, places * next(iter(members)).block_bytes))
    return CacheLayout(tuple(groups), tuple(pools))


def _places(kinds: Sequence[tuple[int, int]]) -> int:
    """Return how many layers the groups of a pool shall have: the fewest groups of little waste.

    Args:
        kinds: For each specification the number of its layers, and of blocks that each holds.
    """
    costs = {
        places: sum(-(-layers // places) * places * blocks for layers, blocks in kinds)
        for places in range(1, max(layers for layers, _ in kinds) + 1)
    }
    least = min(costs.values())
    return max(places for places, cost in costs.items() if cost <= least * (1 + WASTE))
