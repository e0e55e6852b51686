"""Sizes from specifications: against numbers worked out by hand."""

from dataclasses import replace

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.explain.estimate import (
    activation_bytes,
    cache_need,
    draft_need,
    group_uses,
    paper_info,
    step_shares,
)
from hotshoe.platform import DeviceFacts, MemoryBudget
from hotshoe.slots import (
    SLOTS,
    AttentionSpec,
    GraphSpec,
    LinearSpec,
    NormSpec,
    SampleSpec,
    Selector,
)
from hotshoe.types.cache import CachePart, CacheSpec
from hotshoe.types.layout import lay_out

PLAIN = EngineConfig(max_model_len=64, block_size=16, max_num_batched_tokens=16, max_num_seqs=2)


def using(uses) -> Selector:
    selector = Selector(SLOTS, (), DeviceFacts("null", "cpu", "nothing", "none", 1, 1))
    selector.uses.update(uses)
    return selector


def test_shares_of_a_step() -> None:
    linear, norm = LinearSpec(64, 64, "float32"), NormSpec(64, 1e-6, "float32")
    attention = AttentionSpec(4, 2, 64, "float32", "float32", 16, 0.125, window=8)
    uses = {("linear", linear): 3, ("rms_norm", norm): 1, ("attention", attention): 1}
    moved = {"linear": 3 * 64 * 64 * 4, "rms_norm": 3 * 64 * 4, "attention": 2 * 8 * 2 * 64 * 4}
    shares = step_shares(using(uses), 1000)
    assert sum(shares.values()) == pytest.approx(1)
    for (slot, _), share in shares.items():
        assert share == pytest.approx(moved[slot] / sum(moved.values()))
    graph = ("graph", GraphSpec(8))
    assert step_shares(using({graph: 1}), 8) == {graph: 0}


def test_activations_grow_with_tokens_and_rows() -> None:
    uses = {
        ("linear", LinearSpec(64, 192, "bfloat16")): 1,
        ("rms_norm", NormSpec(64, 1e-6, "bfloat16")): 1,
        ("sample", SampleSpec(1000)): 1,
    }
    config = EngineConfig(dtype="bfloat16", max_num_batched_tokens=10, max_num_seqs=3)
    assert activation_bytes(config, using(uses)) == 10 * (256 + 128) * 2 + 2 * 3 * 1000 * 4


def test_the_cache_is_planned_as_at_start_up() -> None:
    config = PLAIN
    caches = lay_out([CacheSpec("full", 16, (CachePart("kv", "n", (100,), "int8", 0),))], 64, 64)
    need = cache_need(config, paper_info(caches, 1000, MemoryBudget(550, "half")))
    assert (need.bytes, need.note) == (
        500,
        "5 blocks of 100 bytes, for 1.2 requests of 64 tokens; half",
    )
    need = cache_need(config, paper_info(caches, 1000, MemoryBudget(10**6)))
    assert need.bytes == 800
    assert cache_need(config, paper_info(caches, 1000, MemoryBudget(399))).note.startswith(
        "does not fit: "
    )


def test_a_draft_model_shares_the_memory_for_caches() -> None:
    config = replace(PLAIN, model="large", platform="cpu")
    draft = replace(config, model="small")
    info, found = (
        paper_info(
            lay_out([CacheSpec("full", 16, (CachePart("kv", "n", (size,), "int8", 0),))], 64, 64),
            1000,
            MemoryBudget(budget),
        )
        for size, budget in ((300, 2400), (100, 900))
    )
    (left, other), need = draft_need(draft, found, config, info)
    assert (need.use, need.bytes, need.note) == ("draft KV cache", 600, "for 1.5 requests")
    assert (left, other.cache_budget_bytes) == (config, 1800)
    (left, other), need = draft_need(
        draft, found, replace(config, kv_cache_memory_bytes=2000), info
    )
    assert (need.bytes, left.kv_cache_memory_bytes) == (500, 1500)
    (_, other), need = draft_need(replace(draft, platform="cuda"), found, config, info)
    assert (need.bytes, other.cache_budget_bytes) == (800, 2400)
    need = draft_need(draft, found, config, replace(info, cache_budget_bytes=100))[1]
    assert need.bytes == 0
    assert need.note.startswith("does not fit: speculative_config.model small: ")


def test_groups_and_pools_are_told_apart() -> None:
    config = EngineConfig(
        max_model_len=640, block_size=16, max_num_batched_tokens=32, max_num_seqs=3
    )
    parts = [(CachePart("k", "n", (size,), "int8"),) for size in (10, 30)]
    full, window = CacheSpec("full", 16, parts[0]), CacheSpec("window", 16, parts[0], 33)
    caches = lay_out([full, window, window, window, CacheSpec("full", 16, parts[1])], 640, 32)
    uses = group_uses(config, caches)
    told = [(g.kind, g.window, g.layers, g.pool, g.request_blocks, g.empty_places) for g in uses]
    assert told == [
        ("full", None, (0,), 0, 40, 0),
        ("window", 33, (1,), 0, 5, 0),
        ("window", 33, (2,), 0, 5, 0),
        ("window", 33, (3,), 0, 5, 0),
        ("full", None, (4,), 1, 40, 0),
    ]
    assert [g.request_bytes for g in uses] == [400, 50, 50, 50, 1200]
    need = cache_need(config, paper_info(caches, 1000, MemoryBudget(3470)))
    assert need.note == (
        "107 blocks of 10 bytes and 80 blocks of 30 bytes, for 2.0 requests of 640 tokens"
    )
    assert need.bytes == 3470


def test_empty_places_are_counted() -> None:
    config = EngineConfig(max_model_len=64, block_size=16, max_num_batched_tokens=16)
    part = (CachePart("k", "n", (10,), "int8"),)
    specs = [CacheSpec("full", 16, part)] * 10 + [CacheSpec("window", 16, part, 32)] * 9
    uses = group_uses(config, lay_out(specs, 64, 16))
    assert [(g.empty_places, g.places, g.wasted_bytes) for g in uses] == [(0, 10, 0), (1, 10, 40)]


def test_a_model_without_caches_needs_none() -> None:
    config = EngineConfig(max_model_len=64, max_num_batched_tokens=64)
    need = cache_need(config, paper_info(lay_out([], 64, 64), 1000, MemoryBudget(10**6)))
    assert need.bytes == 0 and "takes all of a prompt" in need.note
