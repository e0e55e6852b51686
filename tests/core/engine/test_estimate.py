"""Sizes from specifications: against numbers worked out by hand."""

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.estimate import activation_bytes, cache_need, step_shares
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
from hotshoe.types.cache import CachePart, CacheSpec, lay_out


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
    config = EngineConfig(max_model_len=64, block_size=16, max_num_seqs=2)
    caches = lay_out([CacheSpec("full", 16, (CachePart("kv", "n", (100,), "int8", 0),))], 64, 64)
    need = cache_need(config, caches, 1000, MemoryBudget(550, "half"))
    assert (need.bytes, need.note) == (500, "5 blocks of 100 bytes, 80 tokens; half")
    need = cache_need(config, caches, 1000, MemoryBudget(10**6))
    assert need.bytes == 800
    assert cache_need(config, caches, 1000, MemoryBudget(399)).note.startswith("does not fit: ")
