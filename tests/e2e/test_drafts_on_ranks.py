"""Drafts of two processes that divide a model: tokens are those of one without drafts."""

import os
from pathlib import Path

import pytest
from tests.e2e import eagle, mtp

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import ConfigError

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")

PROMPTS = [TokensPrompt([(n * i * i + i) % 251 for i in range(5 + 20 * n)]) for n in range(4)]
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.4, seed=7, top_k=20, max_tokens=30, ignore_eos=True)


def written(name: str, path: Path) -> tuple[Path, dict[str, object]]:
    """Write a model; return it, and what makes its drafts."""
    if name == "mtp":
        weights = mtp.chain_weights(3, strange=0.4, further=2)
        return mtp.write(path / "model", weights, num_nextn_predict_layers=2), {}
    weights = eagle.model_weights("llama", 3)
    model = eagle.write_model(path / "model", "llama", weights)
    if name == "draft_model":
        return model, {"model": str(eagle.write_model(path / "draft", "llama", weights))}
    head = eagle.head_weights(name, weights, 4)
    return model, {"model": str(eagle.write(path / "head", head, **eagle.HEAD_CONFIGS[name]))}


SHARING, STAGES = "tensor_parallel_size", "pipeline_parallel_size"


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        pytest.param("mtp", SHARING, marks=pytest.mark.slow),
        ("eagle3", SHARING),
        ("draft_model", SHARING),
        pytest.param("eagle", SHARING, marks=pytest.mark.slow),
        pytest.param("medusa", SHARING, marks=pytest.mark.slow),
        ("mtp", STAGES),
        pytest.param("eagle", STAGES, marks=pytest.mark.slow),
        pytest.param("eagle3", STAGES, marks=pytest.mark.slow),
        pytest.param("medusa", STAGES, marks=pytest.mark.slow),
        ("draft_model", STAGES),
    ],
)
def test_tokens_are_those_of_one_process_without_drafts(
    tmp_path: Path, name: str, axis: str
) -> None:
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
    options["speculative_config"] = {
        "method": name,
        "num_speculative_tokens": 3,
        "adaptive": False,
        **own,
    }
    with LLM(str(path), **{axis: 2}, **options) as llm:
        found = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
        stats = llm.stats()
    assert stats.num_accepted_tokens > 0
    assert found == plain


def test_a_last_stage_without_a_head_is_refused(tmp_path: Path) -> None:
    path = mtp.write(tmp_path, mtp.random_weights(1), num_nextn_predict_layers=0)
    options = {"platform": "cpu", "skip_tokenizer_init": True, STAGES: 2}
    options["speculative_config"] = {
        "method": "mtp",
        "num_speculative_tokens": 1,
        "adaptive": False,
    }
    with pytest.raises(ConfigError, match=r"MiMoForCausalLM in .* has none"):
        LLM(str(path), **options)
