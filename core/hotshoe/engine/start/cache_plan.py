"""How many blocks each pool of the KV cache gets. Called at start-up and by `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from hotshoe.config import ResolvedConfig
from hotshoe.errors import MemoryLimitError
from hotshoe.executor import WorkerInfo
from hotshoe.executor.caches import check_caches
from hotshoe.platform import DeviceFacts
from hotshoe.types import CacheLayout, CachePool
from hotshoe.types.cache import full_group, held_blocks


def layout_of(config: ResolvedConfig, info: WorkerInfo) -> CacheLayout:
    """Return a worker's cache groups; one that names none has a single one.

    Raises:
        ConfigError: Groups have kinds or sizes of blocks that are not served.
    """
    if info.caches is not None:  # by a platform's own worker, perhaps
        check_caches([group.spec for group in info.caches.groups], config.block_size)
    pools = (CachePool(1, info.block_bytes),)
    return info.caches or CacheLayout((full_group(config.block_size),), pools)


def cache_bytes(info: WorkerInfo, num_blocks: Sequence[int]) -> int:
    """Return the bytes of so many blocks in each pool."""
    if info.caches is None:
        return info.block_bytes * sum(num_blocks)
    pools = zip(info.caches.pools, num_blocks, strict=True)
    return sum(pool.block_bytes * count for pool, count in pools)


def request_blocks(layout: CacheLayout, num_tokens: int, step_tokens: int) -> list[int]:
    """Return how many blocks of each pool one sequence of so many tokens needs."""
    needs = [0] * len(layout.pools)
    for group in layout.groups:
        needs[group.pool] += held_blocks(group.spec, num_tokens, step_tokens)
    return needs


def state_blocks(config: ResolvedConfig, layout: CacheLayout, num_seqs: int) -> list[int]:
    """Return the blocks of each pool that hold the states of so many running sequences.

    States that a step keeps within prompts are counted once, as the step's tokens are.
    """
    counts = [0] * len(layout.pools)
    for group in layout.groups:
        spec = group.spec
        if spec.kind == "state":
            one = held_blocks(spec, config.max_model_len, spec.block_tokens)
            counts[group.pool] += num_seqs * one
            if spec.checkpoints == "all":
                counts[group.pool] += config.max_num_batched_tokens // spec.block_tokens
    return counts


def _token_blocks(layout: CacheLayout, num_tokens: int, step_tokens: int) -> list[int]:
    """Return what `request_blocks` does, without blocks of states."""
    groups = tuple(group for group in layout.groups if group.spec.kind != "state")
    return request_blocks(CacheLayout(groups, layout.pools), num_tokens, step_tokens)


def _kept_states(layout: CacheLayout, num_tokens: int) -> list[int]:
    """Return how many states one sequence leaves behind for others, in each pool."""
    counts = [0] * len(layout.pools)
    for group in layout.groups:
        if group.spec.checkpoints == "all":
            counts[group.pool] += -(-num_tokens // group.spec.block_tokens)
    return counts


def plan_cache(config: ResolvedConfig, info: WorkerInfo) -> tuple[int, ...]:
    """Return the number of blocks of each pool: what the budget allows, at most what requests
    could use. States of `max_num_seqs` sequences come first, then a request of full length that
    computes its prompt; pools share the rest as others do that decode.

    Raises:
        MemoryLimitError: Not even one request of full length fits beside the states.
    """
    budget = config.kv_cache_memory_bytes
    note = "kv_cache_memory_bytes"
    if budget is None:
        budget, note = info.cache_budget_bytes, info.budget_note
        if config.memory_share is not None and config.memory_share < 1:
            budget = int(budget * config.memory_share)
            note = f"a share of {config.memory_share:.0%} of {note}"
    layout, step = layout_of(config, info), config.max_num_batched_tokens
    states = state_blocks(config, layout, config.max_num_seqs)
    first = _token_blocks(layout, config.max_model_len, step)
    kept = _kept_states(layout, config.max_model_len)
    request = cache_bytes(info, request_blocks(layout, config.max_model_len, step))
    if request > budget:
        longest, one = _longest(layout, budget, config.max_model_len, step), config.max_model_len
        has, needs = _in_mib(budget, request)
        lower = "lower --block-size or free memory"
        if longest > 1:
            lower = f"lower --max-model-len to {longest} or less"
        raise MemoryLimitError(
            f"the KV cache may take {has} ({note}), but one request of max_model_len {one} needs "
            f"{needs}; {lower}, or raise --kv-cache-memory-bytes to {request} or more"
        )
    rest = budget - cache_bytes(info, states) - cache_bytes(info, first)
    if rest < 0:
        _refuse_states(config, info, budget, note)
    other = _token_blocks(layout, config.max_model_len, 1)
    wanted = [need + more for need, more in zip(other, kept, strict=True)]
    share = max(cache_bytes(info, wanted), 1)
    most = [(need + more) * config.max_num_seqs for need, more in zip(first, kept, strict=True)]
    return tuple(
        state + min(need + rest * want // share, limit)
        for state, need, want, limit in zip(states, first, wanted, most, strict=True)
    )


def check_asked(config: ResolvedConfig, facts: DeviceFacts) -> None:
    """Refuse, before anything is loaded, a size of the cache that a device does not have at all.

    Raises:
        MemoryLimitError: It names the option.
    """
    asked = config.kv_cache_memory_bytes
    if asked is not None and asked > facts.memory_bytes:
        wants, has = _in_mib(asked, facts.memory_bytes, 0)
        raise MemoryLimitError(
            f"kv_cache_memory_bytes asks for {wants}, but {facts.name} has {has} in all; "
            "lower --kv-cache-memory-bytes"
        )


def check_free(facts: DeviceFacts, free_bytes: int | None, size_bytes: int) -> None:
    """Refuse caches that a device has no memory for.

    Args:
        free_bytes: Memory that is free, where that is known.
        size_bytes: Of all caches.

    Raises:
        MemoryLimitError: It names the option.
    """
    limit, kind = (facts.memory_bytes, "in all") if free_bytes is None else (free_bytes, "free")
    if size_bytes > limit:
        wants, has = _in_mib(size_bytes, limit, 0)
        raise MemoryLimitError(
            f"the KV cache would take {wants}, but {facts.name} has {has} {kind}; "
            "lower --kv-cache-memory-bytes"
        )


def concurrency(config: ResolvedConfig, info: WorkerInfo, num_blocks: Sequence[int]) -> float:
    """Return how many requests of full length the blocks of all pools hold at once.

    One of them computes its prompt; the others decode, and their windows hold a step's tokens less.
    """
    layout, step = layout_of(config, info), config.max_num_batched_tokens
    states = state_blocks(config, layout, config.max_num_seqs)
    first, other = (_token_blocks(layout, config.max_model_len, n) for n in (step, 1))
    every = zip(num_blocks, states, first, other, strict=True)
    found = [1 + (count - state - need) / more for count, state, need, more in every if more]
    return min(found, default=config.max_num_seqs)


def _refuse_states(config: ResolvedConfig, info: WorkerInfo, budget: int, note: str) -> NoReturn:
    """Say how many sequences' states there is room for."""
    layout, step = layout_of(config, info), config.max_num_batched_tokens
    none, one, every = (
        cache_bytes(info, state_blocks(config, layout, n)) for n in (0, 1, config.max_num_seqs)
    )
    share = cache_bytes(info, _token_blocks(layout, config.max_model_len, step))
    fitting = (budget - none - share) // (one - none)
    remedy = f"lower --max-num-seqs to {fitting} or less, or " if fitting > 0 else ""
    needs, has = _in_mib(every + share, budget)
    raise MemoryLimitError(
        f"the states of {config.max_num_seqs} sequences, and one request of max_model_len "
        f"{config.max_model_len} beside them, need {needs}, but the cache may take {has} ({note}); "
        f"{remedy}raise --kv-cache-memory-bytes to {every + share} or more"
    )


def _in_mib(more: int, less: int, digits: int = 2) -> tuple[str, str]:
    """Write two sizes in MiB, with as many digits as tell them apart."""
    while True:
        texts = f"{more / 2**20:,.{digits}f} MiB", f"{less / 2**20:,.{digits}f} MiB"
        if texts[0] != texts[1] or more == less:
            return texts
        digits += 1


def _longest(layout: CacheLayout, budget: int, max_model_len: int, step_tokens: int) -> int:
    """Return the longest sequence, in whole blocks, that memory holds."""
    size = layout.groups[0].spec.block_tokens
    low, high = 0, -(-max_model_len // size)
    while low < high:
        middle = (low + high + 1) // 2
        needs = request_blocks(layout, middle * size, step_tokens)
        if sum(n * p.block_bytes for n, p in zip(needs, layout.pools, strict=True)) <= budget:
            low = middle
        else:
            high = middle - 1
    return low * size
