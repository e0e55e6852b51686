"""Adapters of every matrix of families whose layers differ: tokens of transformers with the factors
added to the weights."""

import copy
import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tests.plugins.models.conftest import HERE, Checkpoint

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError, ConfigError

#: Variants, and the matrices of each that adapters may not change.
FAMILIES = {
    "deepseek-v3-experts": "",  # latent attention, a router, shared experts
    "deepseek-v3.2": "",  # an indexer
    "qwen3-next": "",  # the gated delta rule, gated attention, a gate of shared experts
    "mamba2": "",
    "nemotron-h": "",  # Mamba-2; modules have other names than files
    "jamba": "",  # Mamba-1
    "phi3": "",  # q, k and v in one matrix
    "falcon": "",  # the same, head by head
    "mllama": r"layers\.[13]\.",  # layers that are left out change the numbers of others
    "gemma3-seeing": r"vision|projector",  # the part that makes text has a prefix
    "gpt2": "",  # matrices are transposed
    "qwen3.5": "",
    "kimi-linear": "",  # another gated delta rule
    "longcat": "",  # a router of its own
    "zaya": "",  # a router of several matrices
    "spark": "vision|audio",  # latents of experts, whose outputs are normed
    "hunyuan3": "",  # shared experts have another name in files
    "minimax-m3-seeing": r"vision|project|indexer",  # files have gates and ups apart
    "recurrent-gemma": "",
    "xlstm": "",
    "zamba": "",  # heads of Mamba-1, whose small matrices are no modules; a shared transformer
    "zamba2": "",
    "gemma3n": "",  # small matrices in float32
}
PROMPTS = [list(range(3, 24)), [9, 9, 1]]
COUNT, RANK, SCALE = 6, 4, 0.7
SETTINGS = {
    "platform": HERE,
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 1 << 22,
    "enable_lora": True,
    "max_loras": 1,
    "block_size": 16,
}


def matrices(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the modules of one matrix each that PEFT may change, but the ends, by name."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return {
        name: module
        for name, module in model.named_modules()
        if getattr(getattr(module, "weight", None), "dim", lambda: 0)() == 2
        and not isinstance(module, torch.nn.Embedding)
        and module not in ends
    }


def merge(modules: dict[str, torch.nn.Module], path: Path, **config: object) -> None:
    """Write random factors of these matrices as PEFT does, and add them to the weights."""
    tensors = {}
    for name, module in modules.items():
        turned = type(module).__name__ == "Conv1D"
        weight = module.weight.T if turned else module.weight
        rows, columns = weight.shape
        a, b = torch.randn(RANK, columns) * columns**-0.5, torch.randn(rows, RANK) * RANK**-0.5
        merged = weight.detach() + SCALE * b @ a
        module.weight = torch.nn.Parameter(
            merged.T if turned else merged
        )  # other layers keep theirs
        prefix = f"base_model.model.{name}"
        tensors |= {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
        config |= {"fan_in_fan_out": turned}
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "r": RANK, "lora_alpha": SCALE * RANK, **config}
    (path / "adapter_config.json").write_text(json.dumps(values))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_matrix_that_may_change_does(
    checkpoints, variants, tmp_path: Path, name: str
) -> None:
    base, refused = checkpoints.get(variants[name]), FAMILIES[name] or "$^"
    merged = Checkpoint(base.path, copy.deepcopy(base.model), base.impl)
    modules = matrices(merged.model)
    others = {key: module for key, module in modules.items() if re.search(refused, key)}
    own = {key: module for key, module in modules.items() if key not in others}
    merge(own, tmp_path / "own")
    with LLM(str(base.path), **SETTINGS) as llm:
        for number, (key, module) in enumerate(list(others.items())[:4]):
            merge({key: copy.deepcopy(module)}, tmp_path / str(number))
            message = rf"{re.escape(key)}, which .*; train it without .*, or merge it"
            with pytest.raises(CheckpointError, match=message):
                llm.load_adapter("other", tmp_path / str(number))
        llm.load_adapter("own", tmp_path / "own")
        asked = [(prompt, adapter) for prompt in PROMPTS for adapter in ("own", None)]
        found = llm.generate(
            [TokensPrompt(prompt) for prompt, _ in asked],
            [
                SamplingParams(
                    temperature=0, max_tokens=COUNT, ignore_eos=True, adapter=adapter, logprobs=0
                )
                for _, adapter in asked
            ],
        )
    for (prompt, adapter), result in zip(asked, found, strict=True):
        judge = base if adapter is None else merged
        judge.assert_greedy(prompt, result.outputs[0].token_ids)
    sure = [result.outputs[0].cumulative_logprob for result in found]
    changes = [abs(own - plain) for own, plain in zip(sure[::2], sure[1::2], strict=True)]
    assert max(changes) > 1e-3, changes  # one may be as before by chance


def test_models_that_make_vectors_take_none(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="enable_lora: BertModel writes no text"):
        LLM(str(tmp_path), **SETTINGS)
