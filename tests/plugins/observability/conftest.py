"""Records of requests and snapshots made by hand."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from hotshoe.engine.client import EngineStats
from hotshoe.types import RequestTiming, SamplingParams
from hotshoe.types.experts import ExpertCounts
from hotshoe_observability.counts import Counts
from hotshoe_observability.exposition import Snapshot
from hotshoe_server.extensions import RequestRecord


@pytest.fixture
def make_record() -> Callable[..., RequestRecord]:
    """A request that arrived at 100 s, started at 101, got tokens from 103 to 107, ended at 108."""

    def make(**values: object) -> RequestRecord:
        defaults = {
            "request_id": "cmpl-1",
            "endpoint": "/v1/completions",
            "model": "demo",
            "headers": {},
            "stream": True,
            "params": SamplingParams(max_tokens=9, temperature=0.5),
            "arrival_s": 100.0,
            "num_prompt_tokens": 20,
            "num_cached_tokens": 16,
            "num_generated_tokens": 5,
            "timing": RequestTiming(100.5, 101.0, 103.0, 107.0),
            "finish_reasons": ["stop"],
            "end_s": 108.0,
        }
        return RequestRecord(**{**defaults, **values})

    return make


@pytest.fixture
def snapshot() -> Snapshot:
    config = SimpleNamespace(platform="null", dtype="float32", quantization=None)
    config.kv_cache_dtype, config.enable_prefix_caching = "bfloat16", True
    config.enable_lora, config.max_loras = True, 4
    stats = EngineStats(
        num_running=3,
        num_waiting=3,
        num_aside=1,
        num_blocks=10,
        num_used_blocks=4,
        num_generated_tokens=77,
        num_prompt_tokens=50,
        num_cached_tokens=20,
        num_steps_of=(4, 0, 0, 0, 1, *[0] * 9),
        num_step_tokens=40,
        num_failed=2,
        adapters={"b": (1, 1), "a": (0, 2), "c": (3, 0)},
        num_finished={"stop": 5, "length": 1},
        num_drafts=9,
        num_draft_tokens=20,
        num_accepted_at=(6, 2),
        experts=ExpertCounts(4, 9, 1.25),
    )
    info = SimpleNamespace(config=config, num_blocks=10, block_size=16)
    return Snapshot("demo", info, stats, 0, Counts())
