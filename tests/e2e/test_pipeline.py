"""Two stages give the tokens of one process: whatever the settings, until one of them is killed."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.e2e.test_tensor_parallel import BLOCK_BYTES, BUSY, answers, rank_pids, running

from hotshoe import LLM, PoolingParams, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, EngineDeadError
from hotshoe.types import EmbedsPrompt

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")

#: Of a killed stage: until the engine has said so and nothing runs.
END_S = 5.0
DRAFTS = {
    "method": "ngram_device",
    "num_speculative_tokens": 3,
    "adaptive": False,
    "prompt_lookup_max": 2,
}
TIED = {"tie_word_embeddings": True, "num_hidden_layers": 3}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield
    assert [*tmp_path.iterdir(), *Path("/dev/shm").glob("*hotshoe*")] == []


def open_stages(model_dir: Path, stages: int, **options: object) -> LLM:
    settings = {"load_format": "dummy", "max_num_seqs": 8, "seed": 3, "platform": "cpu", **options}
    return LLM(str(model_dir), pipeline_parallel_size=stages, **settings)


def test_tokens_are_those_of_one_process(model_dir: Path) -> None:
    with open_stages(model_dir, 1, **BUSY) as llm:
        expected = answers(llm)
        whole = llm.memory["weights"]
    # Each stage has one of two layers, so that a block takes half as much.
    with open_stages(model_dir, 2, **BUSY, kv_cache_memory_bytes=10 * BLOCK_BYTES // 2) as llm:
        pids = rank_pids(llm)
        assert answers(llm) == expected
        assert answers(llm) == expected  # now with a warm cache
        stats = llm.engine.core.stats()
        assert stats.num_preemptions > 0 and stats.num_hit_tokens > 0
        assert llm.config.pipeline_steps == 2
        assert llm.memory["weights"] <= 0.5 * whole
    assert running(pids) == []


def test_drafts_and_more_steps_under_way_change_no_token(model_dir: Path) -> None:
    with open_stages(model_dir, 1, **BUSY) as llm:
        expected = answers(llm)
    options = {"speculative_config": DRAFTS, "pipeline_steps": 4, **BUSY}
    with open_stages(model_dir, 2, **options) as llm:
        assert answers(llm) == expected
        assert 0 < llm.stats().num_accepted_tokens < llm.stats().num_draft_tokens


def test_ties_uneven_stages_and_the_reference_communicator(model_dir: Path) -> None:
    """Prompt log probabilities, embeddings and vectors as well."""
    options = {"hf_overrides": TIED, "max_model_len": 112}
    rows = torch.randn(6, 64, generator=torch.Generator().manual_seed(1)).numpy()
    prompts = [TokensPrompt([5, 6, 7]), EmbedsPrompt(rows), TokensPrompt(list(range(40)))]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
    judging = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)

    def everything(llm: LLM) -> list[object]:
        said = [output.outputs[0] for output in llm.generate(prompts, params)]
        [judged] = llm.generate(prompts[2:], judging)
        pooled = llm.embed(prompts[::2], PoolingParams())
        return [
            [(output.token_ids, output.logprobs) for output in said],
            judged.prompt_logprobs,
            [output.embedding for output in pooled],
        ]

    with open_stages(model_dir, 1, pooling="mean", **options) as llm:
        expected = everything(llm)
    split = {"pipeline_layers": [1, 2], "kernel": {"communicator": "reference"}}
    with open_stages(model_dir, 2, pooling="mean", **split, **options) as llm:
        assert everything(llm) == expected


@pytest.mark.skipif((os.cpu_count() or 1) < 4, reason="needs four processors")
def test_stages_of_several_ranks(model_dir: Path) -> None:
    with open_stages(model_dir, 1, **BUSY) as llm:
        expected = answers(llm)
    with open_stages(model_dir, 2, tensor_parallel_size=2, **BUSY) as llm:
        assert len(rank_pids(llm)) == 4
        assert answers(llm) == expected


@pytest.mark.slow  # starts the stages three times
def test_stages_sleep_and_take_new_weights(model_dir: Path, tmp_path_factory) -> None:
    """All of them or none: also where one alone could tell that a tensor does not fit."""
    prompt, params = TokensPrompt([5, 6, 7]), SamplingParams(temperature=0, max_tokens=8)
    with open_stages(model_dir, 2) as llm:
        [before] = llm.generate(prompt, params)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            [after] = llm.generate(prompt, params)
            assert after.outputs[0].token_ids == before.outputs[0].token_ids
        norm = torch.linspace(-9, 9, 64)
        own = ("model.layers.0.input_layernorm.weight", norm)
        with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \[63\]"):
            llm.update_weights([own, ("model.norm.weight", norm[1:])])
        with pytest.raises(CheckpointError, match="does not have"):
            llm.update_weights([own, ("model.layers.2.input_layernorm.weight", norm)])
        [after] = llm.generate(prompt, params)
        assert after.outputs[0].token_ids == before.outputs[0].token_ids
        llm.update_weights([own])  # of which the last stage has nothing
        [after] = llm.generate(prompt, params)
        assert after.outputs[0].token_ids != before.outputs[0].token_ids


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_stage_ends_the_engine(model_dir: Path, stage: int) -> None:
    llm = open_stages(model_dir, 2)
    pids = rank_pids(llm)
    stream = llm.stream(TokensPrompt([1, 2, 3]), SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    os.kill(pids[stage], signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(EngineDeadError, match=f"rank {stage} of 2 was killed"):
        list(stream)
    assert time.monotonic() - begin < END_S
    assert running(pids) == []
    llm.close()
