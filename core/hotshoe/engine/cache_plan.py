"""How many blocks each pool of the KV cache gets. Called at start-up and by `explain`."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe.config import EngineConfig
from hotshoe.errors import MemoryLimitError
from hotshoe.executor import WorkerInfo
from hotshoe.types import CacheLayout, CachePool
from hotshoe.types.cache import full_group, held_blocks


def layout_of(config: EngineConfig, info: WorkerInfo) -> CacheLayout:
    """Return a worker's cache groups; one that names none has a single one."""
    assert config.block_size is not None
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


def plan_cache(config: EngineConfig, info: WorkerInfo) -> tuple[int, ...]:
    """Return the number of blocks of each pool: what the budget allows, at most what requests
    could use. Pools share memory as a request of full length does.

    Raises:
        MemoryLimitError: Not even one request of full length fits.
    """
    assert config.max_model_len is not None
    budget = config.kv_cache_memory_bytes
    note = "kv_cache_memory_bytes"
    if budget is None:
        budget, note = info.cache_budget_bytes, info.budget_note
    layout, step = layout_of(config, info), config.max_num_batched_tokens or config.max_model_len
    sizes = [pool.block_bytes for pool in layout.pools]
    needs = request_blocks(layout, config.max_model_len, step)
    request = sum(need * size for need, size in zip(needs, sizes, strict=True))
    if request > budget:
        mib, longest = 2**20, _longest(layout, budget, config.max_model_len, step)
        lower = f"lower --max-model-len to {longest} or less" if longest > 1 else "free memory"
        raise MemoryLimitError(
            f"the KV cache may take {budget / mib:.2f} MiB ({note}), but one request of "
            f"max_model_len {config.max_model_len} needs {request / mib:.2f} MiB; {lower}, "
            "or raise --kv-cache-memory-bytes"
        )
    most = [need * config.max_num_seqs for need in needs]
    return tuple(
        min(budget * need // max(request, 1), limit)
        for need, limit in zip(needs, most, strict=True)
    )


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
