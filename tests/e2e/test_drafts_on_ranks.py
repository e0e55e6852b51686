"""Drafts of two processes that share every layer: tokens are those of one without drafts."""

import os
from pathlib import Path

import pytest
from tests.e2e import eagle, mtp

from hotshoe import LLM, SamplingParams, TokensPrompt

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")

PROMPTS = [TokensPrompt([(n * i * i + i) % 251 for i in range(5 + 20 * n)]) for n in range(4)]
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.4, seed=7, top_k=20, max_tokens=30, ignore_eos=True)


def written(name: str, path: Path) -> tuple[Path, dict[str, object]]:
    """Write a model; return it, and what makes its drafts."""
    if name == "mtp":
        return mtp.write(path / "model", mtp.chain_weights(3, strange=0.4)), {}
    weights = eagle.model_weights("llama", 3)
    model = eagle.write_model(path / "model", "llama", weights)
    if name == "draft_model":
        return model, {"model": str(eagle.write_model(path / "draft", "llama", weights))}
    head = eagle.head_weights(name, weights, 4)
    return model, {"model": str(eagle.write(path / "head", head, **eagle.HEAD_CONFIGS[name]))}


@pytest.mark.parametrize("name", ["mtp", "eagle3", "draft_model"])
def test_tokens_are_those_of_one_process_without_drafts(tmp_path: Path, name: str) -> None:
    path, own = written(name, tmp_path)
    options = {
        "platform": "cpu",
        "skip_tokenizer_init": True,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 24,
        "block_size": 16,
    }
    params = [GREEDY, DRAWN, GREEDY, DRAWN]
    with LLM(str(path), **options) as llm:
        plain = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
    options["speculative_config"] = {"method": name, "num_speculative_tokens": 3, **own}
    with LLM(str(path), tensor_parallel_size=2, **options) as llm:
        found = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
        assert llm.stats().num_accepted_tokens > 0
    assert found == plain
