"""Ranks described as one: bytes of the one with least room."""

from dataclasses import replace

from hotshoe.config import EngineConfig
from hotshoe.engine.ranks.joined import joined
from hotshoe.engine.start.cache_plan import plan_cache
from hotshoe.executor import WorkerInfo
from hotshoe.slots import Decision
from hotshoe.types import CacheLayout, CachePool
from hotshoe.types.cache import full_group

CONFIG = EngineConfig(block_size=4, max_model_len=40, max_num_seqs=100, max_num_batched_tokens=100)


def info(block_bytes: int, budget: int, **more: object) -> WorkerInfo:
    layout = CacheLayout((full_group(4),), (CachePool(1, block_bytes),))
    return WorkerInfo(50, block_bytes, budget, caches=layout, **more)  # type: ignore[arg-type]


def test_the_cache_is_what_the_stage_with_least_room_can_hold() -> None:
    large, small = info(300, 9000, free_bytes=7), info(100, 4000, weight_bytes=5)
    found = joined([large, small], 1.0, CONFIG)
    assert plan_cache(CONFIG, found) == (30,)  # of 40 that the other stage could hold
    assert (found.weight_bytes, found.free_bytes) == (5, 7)
    assert "2 ranks" in found.budget_note


def test_a_given_size_is_that_of_the_stage_with_most_layers() -> None:
    config = replace(CONFIG, kv_cache_memory_bytes=6000)
    found = joined([info(100, 1), info(300, 2)], 1.0, config)
    assert plan_cache(config, found) == (20,)


def test_decisions_of_all_stages_are_told_once() -> None:
    first, last, both = (Decision(slot, 1, "a", 0, "", ()) for slot in ("embedding", "linear", "x"))
    infos = [info(1, 400, decisions=(first, both)), info(1, 400, decisions=(both, last))]
    assert joined(infos, 1.0, CONFIG).decisions == (first, both, last)
