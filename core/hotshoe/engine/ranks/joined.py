"""Several ranks described as one worker. Bytes are those of the fullest rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotshoe.config import ResolvedConfig
from hotshoe.engine.start.cache_plan import request_blocks
from hotshoe.executor import WorkerInfo

#: What start-up says of quantization, whose scales come from what a rank has.
PARTS_APART = "{} of each rank's part alone (tokens may differ from those of one device)"


def joined(infos: Sequence[WorkerInfo], seconds: float, config: ResolvedConfig) -> WorkerInfo:
    """Describe all ranks together.

    Args:
        infos: By rank.
        seconds: That all took to load.
        config: Resolved.
    """
    last = infos[-1]
    tightest = min(infos, key=lambda info: _requests(info, config))
    assert {info.vocab_size for info in infos} == {last.vocab_size}
    report = {name: _told(name, infos) for name in last.report}
    if config.quantization is not None and config.tensor_parallel_size > 1:
        report["quantization"] = PARTS_APART.format(config.quantization)
    phases = infos[0].phases
    frees = [info.free_bytes for info in infos if info.free_bytes is not None]
    return replace(
        last,
        block_bytes=tightest.block_bytes,
        caches=tightest.caches,
        cache_budget_bytes=tightest.cache_budget_bytes,
        budget_note=f"{tightest.budget_note}, for each of {len(infos)} ranks",
        free_bytes=min(frees, default=None),
        weight_bytes=max(info.weight_bytes for info in infos),
        decisions=tuple(dict.fromkeys(d for info in infos for d in info.decisions)),
        phases={"start ranks": seconds - sum(phases.values()), **phases},
        report=report,
    )


def _requests(info: WorkerInfo, config: ResolvedConfig) -> float:
    """Return how many requests of full length a rank's cache could hold."""
    budget, request = config.kv_cache_memory_bytes, info.block_bytes
    budget = info.cache_budget_bytes if budget is None else budget
    if info.caches is not None:
        step = config.max_num_batched_tokens
        needs = request_blocks(info.caches, config.max_model_len, step)
        pools = zip(info.caches.pools, needs, strict=True)
        request = sum(pool.block_bytes * need for pool, need in pools)
    return budget / max(request, 1)


def _told(name: str, infos: Sequence[WorkerInfo]) -> object:
    """Return what all ranks report under a name, or, where they differ, a list of it."""
    found = [info.report.get(name) for info in infos]
    return found[0] if all(value == found[0] for value in found) else found
