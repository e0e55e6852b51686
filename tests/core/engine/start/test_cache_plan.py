"""Blocks of each pool: states of all rows first, then what is left by shares."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.config import EngineConfig
from hotshoe.engine.explain.estimate import cache_need, paper_info
from hotshoe.engine.start.cache_plan import (
    cache_bytes,
    check_asked,
    concurrency,
    plan_cache,
    request_blocks,
    state_blocks,
)
from hotshoe.errors import ConfigError, MemoryLimitError
from hotshoe.executor import WorkerInfo
from hotshoe.platform import DeviceFacts, MemoryBudget
from hotshoe.types.cache import CachePart, CacheSpec
from hotshoe.types.layout import lay_out

CONFIG = EngineConfig(max_model_len=64, block_size=16, max_num_seqs=3, max_num_batched_tokens=32)
FULL = CacheSpec("full", 16, (CachePart("kv", "n", (100,), "int8"),))


def state(checkpoints):
    parts = (CachePart("conv", "n", (10,), "int8"), CachePart("state", "n", (10,), "float32"))
    return CacheSpec("state", 16, parts, checkpoints=checkpoints)


def plan(specs, budget, config=CONFIG):
    layout = lay_out(specs, config.max_model_len, config.max_num_batched_tokens)
    info = WorkerInfo(100, 0, budget, "granted", caches=layout)
    counts = plan_cache(config, info)
    assert cache_bytes(info, counts) <= budget
    return counts


@pytest.mark.parametrize(("checkpoints", "states"), [("none", 3), ("align", 6)])
def test_every_row_has_its_states_and_tokens_get_the_rest(checkpoints, states):
    specs = [FULL, state(checkpoints)]
    assert plan(specs, 400 + 50 * states) == (4, states)
    assert plan(specs, 799 + 50 * states) == (7, states)
    assert plan(specs, 10**6) == (12, states)


def test_states_at_all_blocks_share_the_rest_with_the_blocks():
    layout = lay_out([FULL, state("all")], 64, 32)
    assert state_blocks(CONFIG, layout, 3) == [0, 2 * 3 + 2]
    assert plan([FULL, state("all")], 400 + 50 * 8) == (4, 8)
    # Beyond one request's blocks, 600 bytes are for a request's 4 blocks and 4 states.
    assert plan([FULL, state("all")], 400 + 50 * 8 + 600) == (8, 12)
    assert plan([FULL, state("all")], 10**6) == (12, 8 + 12)


def test_a_platforms_own_groups_are_checked() -> None:
    """Explanations and engines refuse them alike."""
    caches = lay_out([FULL, CacheSpec("cross", 16, FULL.parts)], 64, 32)
    info = WorkerInfo(100, 0, 10**6, "granted", caches=caches)
    with pytest.raises(ConfigError, match="kind cross, which is not served"):
        plan_cache(CONFIG, info)
    with pytest.raises(ConfigError, match="block_size 8 does not fit"):
        plan([FULL], 10**6, replace(CONFIG, block_size=8))


def test_states_alone_need_no_blocks_of_tokens():
    assert plan([state("none")], 150) == (3,)


@pytest.mark.parametrize("checkpoints", ["none", "align", "all"])
def test_more_rows_than_states_is_refused_with_the_number_that_fits(checkpoints):
    one = {"none": 50, "align": 100, "all": 100}[checkpoints]
    shared = 100 if checkpoints == "all" else 0
    budget = 400 + shared + 2 * one
    with pytest.raises(MemoryLimitError, match=r"the states of 3 sequences.*--max-num-seqs to 2 "):
        plan([FULL, state(checkpoints)], budget)
    with pytest.raises(MemoryLimitError, match=r"max_model_len 64 needs .*--max-model-len to 48"):
        plan([FULL, state("none")], 399)


@pytest.mark.parametrize(
    ("mode", "words"), [("none", "computed anew"), ("align", "steps ended"), ("all", "blocks end")]
)
def test_explain_says_what_is_kept(mode, words):
    config = EngineConfig(
        max_model_len=64,
        block_size=16,
        max_num_seqs=3,
        max_num_batched_tokens=32,
        state_cache_mode=mode,
    )
    caches = lay_out([FULL, state(mode)], 64, 32)
    note = cache_need(config, paper_info(caches, 1000, MemoryBudget(10**6))).note
    count = {"none": 3, "align": 6, "all": 20}[mode]
    assert f"12 blocks of 16 tokens, 100 bytes each and {count} states, 50 bytes each" in note
    assert words in note


LENGTH, STEP = 640, 64
SPECS = [
    CacheSpec(
        "full" if window is None else "window", 16, (CachePart("k", "n", (size,), "int8"),), window
    )
    for size in (10, 30)
    for window in (None, 33, 100)
]
LONG = EngineConfig(max_model_len=LENGTH, block_size=16, max_num_batched_tokens=STEP)


def info_of(specs, budget: int) -> WorkerInfo:
    return WorkerInfo(9, 0, budget, "some", caches=lay_out(specs, LENGTH, STEP))


def need_of(info: WorkerInfo, step: int) -> list[int]:
    return request_blocks(info.caches, LENGTH, step)


@given(st.lists(st.sampled_from(SPECS), min_size=1, max_size=12), st.integers(1, 10**6))
def test_plans_fill_the_budget_with_requests(specs, budget) -> None:
    info = info_of(specs, budget)
    if cache_bytes(info, need_of(info, STEP)) > budget:
        with pytest.raises(MemoryLimitError, match=r"max-model-len|free memory"):
            plan_cache(LONG, info)
        return
    blocks = plan_cache(LONG, info)
    assert cache_bytes(info, blocks) <= budget
    count = concurrency(LONG, info, blocks)
    assert count >= 1
    first, other = need_of(info, STEP), need_of(info, 1)
    for had, one, more in zip(blocks, first, other, strict=True):
        assert had >= one + (int(count) - 1) * more
    # What is left is less than one more request, or there are blocks for all rows.
    left = budget - cache_bytes(info, blocks)
    assert left < cache_bytes(info, other) or count >= LONG.max_num_seqs


def test_the_length_that_is_named_fits() -> None:
    info = info_of(SPECS[:3], 400)
    with pytest.raises(MemoryLimitError) as error:
        plan_cache(LONG, info)
    found = re.search(r"--max-model-len to (\d+)", str(error.value))
    assert found is not None
    for length, fits in ((int(found[1]), True), (int(found[1]) + 16, False)):
        assert (cache_bytes(info, request_blocks(info.caches, length, STEP)) <= 400) == fits


@pytest.mark.parametrize("checkpoints", [None, "none", "align", "all"])
def test_sizes_are_told_apart_and_the_size_that_is_named_is_the_least(checkpoints) -> None:
    specs = [FULL] if checkpoints is None else [FULL, state(checkpoints)]
    for budget in (1, named_in(specs, 1) - 1):
        with pytest.raises(MemoryLimitError) as error:
            plan(specs, budget)
        assert len(set(re.findall(r"([\d.]+) MiB", str(error.value)))) == 2
    budget = named_in(specs, 1)
    if checkpoints is not None:  # that holds one request; then states of all rows are asked for
        budget = named_in(specs, budget)
    plan(specs, budget)
    assert named_in(specs, budget - 1) == budget


def named_in(specs, budget: int) -> int:
    """Return the bytes that a refusal names."""
    with pytest.raises(MemoryLimitError) as error:
        plan(specs, budget)
    found = re.search(r"--kv-cache-memory-bytes to (\d+) or more", str(error.value))
    assert found is not None
    return int(found[1])


def test_a_block_that_the_budget_cannot_hold_names_its_flag() -> None:
    """No shorter length would help: a block is taken whole."""
    spec = replace(FULL, block_tokens=1024)
    with pytest.raises(MemoryLimitError, match=r"lower --block-size .* --kv-cache-memory-bytes"):
        plan([spec], 99, replace(CONFIG, block_size=1024))


def test_one_group_has_what_the_budget_allows() -> None:
    info = info_of(SPECS[:1], 995)
    assert plan_cache(LONG, info) == (99,)
    assert concurrency(LONG, info, (99,)) == pytest.approx(99 / 40)


def test_no_cache_is_larger_than_its_device():
    facts = DeviceFacts("cpu", "x", "A processor", "cpu", 3 << 20, 1)
    for asked in (None, 1, 3 << 20):
        check_asked(EngineConfig(kv_cache_memory_bytes=asked), facts)
    with pytest.raises(MemoryLimitError, match=r"asks for 4 MiB, but A processor has 3 MiB in all"):
        check_asked(EngineConfig(kv_cache_memory_bytes=4 << 20), facts)
