"""Drafts beside adapters, grammars, penalties and log probabilities, in one batch, in one process
or on stages of a pipeline.

Drafts are made without adapters. So they are right less often with one, and change no token.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.e2e import eagle, mtp
from tests.e2e.test_speculation import GREEDY, PATTERN, check

from hotshoe import LLM, GrammarSpec, TokensPrompt

RANK = 4
ROWS = GrammarSpec.regex("([a-c]{3}-[0-9]{2};){3}")
PARAMS = [
    GREEDY,
    replace(GREEDY, adapter="one"),
    replace(GREEDY, adapter="two"),
    replace(GREEDY, grammar=ROWS, logprobs=1),
    replace(GREEDY, grammar=ROWS, adapter="one", temperature=2.0, seed=3),
    replace(GREEDY, adapter="two", frequency_penalty=0.2, presence_penalty=0.1, logprobs=2),
    replace(GREEDY, adapter="one", temperature=0.3, seed=11, top_k=20, prompt_logprobs=1),
    replace(GREEDY, adapter="one", logit_bias={65: 2.0}, min_tokens=8, stop_token_ids=(65,)),
]
PROMPTS = [TokensPrompt([*PATTERN * (1 + number % 3), number]) for number in range(len(PARAMS))]


def write_adapter(path: Path, strength: float) -> str:
    """Write factors of matrices that all models of these tests have."""
    tensors = {}
    for name, (rows, columns) in {
        "model.layers.0.self_attn.q_proj": (eagle.SIZE, eagle.SIZE),
        "model.layers.1.mlp.down_proj": (eagle.SIZE, eagle.INNER),
    }.items():
        low, high = torch.randn(RANK, columns) * columns**-0.5, torch.randn(rows, RANK)
        tensors[f"base_model.model.{name}.lora_A.weight"] = low
        tensors[f"base_model.model.{name}.lora_B.weight"] = strength * high
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": RANK}))
    return str(path)


def write(method: str, path: Path) -> tuple[Path, dict[str, object]]:
    """Write a model and what makes its drafts."""
    options = {"method": method, "num_speculative_tokens": 3, "adaptive": False}
    if method == "mtp":
        return mtp.write(path / "model", mtp.chain_weights(3, strange=0.3)), options
    weights = eagle.model_weights("llama", 3)
    model = eagle.write_model(path / "model", "llama", weights)
    if method == "ngram":
        return model, options
    if method == "draft_model":
        return model, {**options, "model": str(write_draft(path / "draft", weights))}
    head = eagle.write(
        path / "head", eagle.head_weights(method, weights, 4), **eagle.HEAD_CONFIGS[method]
    )
    return model, {**options, "model": str(head)}


def write_draft(path: Path, weights: eagle.Weights) -> Path:
    """Write a model that nearly agrees with another."""
    spoiled = {name: tensor + 0.02 * torch.randn(tensor.shape) for name, tensor in weights.items()}
    return eagle.write_model(path, "llama", spoiled)


@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["ngram", "draft_model", "mtp", "eagle", "eagle3", "medusa"])
def test_drafts_change_no_token(model_dir: Path, tmp_path: Path, method: str, stages: int) -> None:
    path, drafts = write(method, tmp_path)
    for model in (path, tmp_path / "draft"):
        if model.exists():
            shutil.copy(model_dir / "tokenizer.json", model)
    adapters = {
        name: write_adapter(tmp_path / name, strength)
        for name, strength in (("one", 0.02), ("two", 0.1))
    }
    options = {
        "platform": "cpu",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 24,
        "block_size": 16,
        "async_scheduling": True,
        "structured_output_backend": "llguidance",
        "enable_lora": True,
        "max_loras": 2,
        "lora_modules": adapters,
    }
    with LLM(str(path), **options) as llm:
        plain = [output.outputs[0] for output in llm.generate(PROMPTS, PARAMS)]
    options["pipeline_parallel_size"] = stages
    with LLM(str(path), speculative_config=drafts, **options) as llm:
        for _ in range(2):  # then with a warm cache
            found = [output.outputs[0] for output in llm.generate(PROMPTS, PARAMS)]
            check(found, plain)
        stats = llm.stats()
        assert 10 < stats.num_accepted_tokens < stats.num_draft_tokens - 10
        assert stats.num_hit_tokens > 0
    base, other = (plain[place].token_ids for place in (0, 2))
    assert base != other
