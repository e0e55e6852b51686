"""Ways to run a model that have to write the same; `test_kit` shows that others are found."""

import pytest

from hotshoe import LLM, SamplingParams
from hotshoe.types import TokensPrompt
from hotshoe_conformance.checkpoint import MODELS, write_model
from hotshoe_conformance.host import PLATFORM, host_plugins
from hotshoe_conformance.kit import Kit, Options
from hotshoe_conformance.tokens import (
    NUM_TOKENS,
    PROMPT_LENGTHS,
    RUNS,
    SMALL_CACHE_BLOCKS,
    token_defects,
)


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_oracle_agrees_with_itself(quick: bool) -> None:
    assert token_defects(PLATFORM, host_plugins(), 3, Options(quick=quick)) == []


def test_nothing_runs_that_is_too_late() -> None:
    told: list[str] = []

    def late(what: str) -> bool:
        told.append(what)
        return True

    assert token_defects(PLATFORM, host_plugins(), 3, Options(quick=True), late) == []
    assert told == ["runs of tiny models"] * len(RUNS)


def test_runs_differ_in_what_an_engine_can_do() -> None:
    names = [run.name for run in RUNS]
    assert len(set(names)) == len(names)
    assert {"float32", "bfloat16"} == {run.dtype for run in RUNS}
    assert len(MODELS) >= 3


def test_a_platform_with_a_worker_of_its_own() -> None:
    report = Kit("null", Options(quick=True)).run()
    assert report.slots == []
    assert report.defects == []
    assert set(report.checks) == {"declarations", "greedy tokens of tiny models"}


def test_the_small_cache_preempts(tmp_path) -> None:
    plugins = host_plugins()
    path = write_model("llama", tmp_path / "llama", plugins, 1)
    [run] = [run for run in RUNS if "preempts" in run.name]
    place = {"model": str(path), "platform": PLATFORM, "skip_tokenizer_init": True}
    with LLM(plugins=plugins, **place) as plain:
        memory = SMALL_CACHE_BLOCKS * plain.engine.core.info.block_bytes
    with LLM(plugins=plugins, kv_cache_memory_bytes=memory, **place, **run.options) as llm:
        params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
        llm.generate([TokensPrompt([1] * n) for n in PROMPT_LENGTHS], params)
        assert llm.engine.core.stats().num_preemptions > 0
