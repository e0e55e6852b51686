"""Blocks of each pool: states of all rows first, then what is left by shares."""

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.cache_plan import cache_bytes, plan_cache, state_blocks
from hotshoe.engine.estimate import cache_need
from hotshoe.errors import MemoryLimitError
from hotshoe.executor import WorkerInfo
from hotshoe.platform import MemoryBudget
from hotshoe.types.cache import CachePart, CacheSpec, lay_out

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
    note = cache_need(config, caches, 1000, MemoryBudget(10**6)).note
    count = {"none": 3, "align": 6, "all": 20}[mode]
    assert f"12 blocks of 16 tokens, 100 bytes each and {count} states, 50 bytes each" in note
    assert words in note
