"""What a model will take, from its specifications alone: bytes of a step and of the cache.

Estimates for `explain`, made before anything is loaded; what kernels need for themselves is not in
them. Free of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotshoe.config import ResolvedConfig
from hotshoe.engine.start.cache_plan import cache_bytes, concurrency, plan_cache
from hotshoe.engine.start.draft import share_caches
from hotshoe.errors import MemoryLimitError
from hotshoe.executor import WorkerInfo
from hotshoe.platform import MemoryBudget
from hotshoe.slots import Selector
from hotshoe.slots.sizes import TYPE_BITS
from hotshoe.types import CacheLayout
from hotshoe.types.cache import held_blocks


@dataclass(frozen=True, slots=True)
class Need:
    """One line of the memory plan."""

    use: str
    bytes: int
    note: str = ""


def step_shares(selector: Selector, length: int) -> dict[tuple[str, Any], float]:
    """Return each specification's share of the bytes of a decode step at a sequence length."""
    slots = selector.slots
    moved = {
        (slot, spec): slots[slot].step_bytes(spec, length) * count
        for (slot, spec), count in selector.uses.items()
    }
    total = sum(moved.values()) or 1
    return {key: value / total for key, value in moved.items()}


def activation_bytes(config: ResolvedConfig, selector: Selector) -> int:
    """Return the bytes of the largest step's intermediate results.

    The widest matrix product holds its input and output while the residual is kept, and the logits
    of every row are held twice, once for reports.
    """
    tokens, slots, uses = config.max_num_batched_tokens, selector.slots, selector.uses
    inner = [m for slot, s in uses for m in slots[slot].matrices(s) if m.out_dtype is None]
    width = max((s.in_features + s.out_features for s in inner), default=0)
    hidden = max((s.hidden_size for slot, s in uses if slot == "rms_norm"), default=0)
    size = TYPE_BITS.get(config.dtype, 32) // 8
    vocab = max((s.vocab_size for slot, s in uses if slot == "sample"), default=0)
    return tokens * (width + 2 * hidden) * size + 2 * config.max_num_seqs * vocab * 4


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One cache group, and what a request of max_model_len tokens takes of it.

    Attributes:
        layers: Numbers of its layers among those with a cache.
        window: Tokens that it keeps; None keeps all.
        block_bytes: Of a block, empty places included.
        request_blocks: Most blocks held at once, the tokens of a step included.
        empty_places, places: Places of a block that no layer uses, and all of them.
    """

    kind: str
    window: int | None
    layers: tuple[int, ...]
    pool: int
    block_tokens: int
    block_bytes: int
    request_blocks: int
    empty_places: int
    places: int

    @property
    def request_bytes(self) -> int:
        """Bytes of the request's blocks."""
        return self.request_blocks * self.block_bytes

    @property
    def wasted_bytes(self) -> int:
        """Bytes of these that lie in empty places."""
        return self.request_bytes * self.empty_places // self.places


def group_uses(config: ResolvedConfig, caches: CacheLayout) -> tuple[GroupUse, ...]:
    """Describe every cache group of a resolved configuration."""
    length, step = config.max_model_len, config.max_num_batched_tokens
    assert length is not None and step is not None
    return tuple(
        GroupUse(
            "chunk" if group.spec.chunked else group.spec.kind,
            group.spec.window,
            group.layers,
            group.pool,
            group.spec.block_tokens,
            caches.pools[group.pool].block_bytes,
            held_blocks(group.spec, length, step),
            caches.pools[group.pool].places - len(group.layers),
            caches.pools[group.pool].places,
        )
        for group in caches.groups
    )


def paper_info(caches: CacheLayout, vocab_size: int, budget: MemoryBudget) -> WorkerInfo:
    """Return what a worker would say of caches and memory once its weights are loaded."""
    size = sum(pool.block_bytes for pool in caches.pools)
    return WorkerInfo(vocab_size, size, budget.available_bytes, budget.note, caches=caches)


def draft_need(
    draft: ResolvedConfig, found: WorkerInfo, config: ResolvedConfig, info: WorkerInfo
) -> tuple[tuple[ResolvedConfig, WorkerInfo], Need]:
    """Share the memory for caches as start-up would; return what is left for the engine's model,
    and the draft model's line of the plan."""
    try:
        shared = share_caches(draft, found, config, info)
    except MemoryLimitError as error:
        return (config, info), Need("draft KV cache", 0, f"does not fit: {error}")
    room = f"for {concurrency(draft, found, shared.num_blocks):.1f} requests"
    return (shared.config, shared.info), Need("draft KV cache", shared.bytes, room)


def cache_need(config: ResolvedConfig, info: WorkerInfo) -> Need:
    """Plan the cache as start-up would; a plan that fails says why."""
    caches = info.caches
    assert caches is not None
    if not caches.groups:
        return Need("KV cache", 0, "none is needed: a step takes all of a prompt")
    try:
        blocks = plan_cache(config, info)
    except MemoryLimitError as error:
        return Need("KV cache", 0, f"does not fit: {error}")
    pools = zip(blocks, caches.pools, strict=True)
    note = " and ".join(f"{count} blocks of {pool.block_bytes} bytes" for count, pool in pools)
    room = f"for {concurrency(config, info, blocks):.1f} requests of {config.max_model_len} tokens"
    if any(group.spec.kind == "state" for group in caches.groups):
        note = _states_note(config, caches, blocks, room)
    else:
        note += f", {room}"
    if config.kv_cache_memory_bytes is None:
        note += f"; {info.budget_note}" if info.budget_note else ""
    return Need("KV cache", cache_bytes(info, blocks), note)


def _states_note(
    config: ResolvedConfig, caches: CacheLayout, blocks: Sequence[int], room: str
) -> str:
    """Say what each pool of a model with states holds."""
    parts = []
    for number, (count, pool) in enumerate(zip(blocks, caches.pools, strict=True)):
        kinds = {group.spec.kind for group in caches.groups if group.pool == number}
        what = "states" if kinds == {"state"} else f"blocks of {config.block_size} tokens"
        parts.append(f"{count} {what}, {pool.block_bytes} bytes each")
    reuse = {
        "none": "prefixes are computed anew (--state-cache-mode)",
        "align": "prefixes are reused from where steps ended",
        "all": "prefixes are reused from where blocks end",
    }[config.state_cache_mode]
    return f"{' and '.join(parts)}, {room}; {reuse}"
