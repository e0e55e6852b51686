"""Tiny random checkpoints of both architectures: the engine writes transformers' own tokens.

transformers computes their twins, Mixtral and Bamba, of the same weights.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BambaConfig, BambaForCausalLM, MixtralConfig, MixtralForCausalLM

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError

COUNT = 16
PROMPTS = [[3, 7, 11, 2, 5, 9, 1, 13, 40, 41], [17, 4]]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": None,
}
STATES = {"mamba_n_heads": 4, "mamba_d_state": 12, "mamba_n_groups": 2, "mamba_d_head": 16}
#: By architecture: the twin's configuration, and its class.
TWINS = {
    "PatchworkForCausalLM": (MixtralConfig(**SIZES, num_local_experts=4), MixtralForCausalLM),
    "BraidForCausalLM": (BambaConfig(**SIZES, **STATES, attn_layer_indices=[1]), BambaForCausalLM),
}


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest, tmp_path: Path):
    """Save a checkpoint of an architecture, and return the twin that has the same weights."""
    config, kind = TWINS[request.param]
    torch.manual_seed(13)
    model = kind(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:  # so large that every layer and the order of tokens matter
                weight.normal_(0.0, 1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(tmp_path)
    write(tmp_path, architectures=[request.param])
    return model


def write(path: Path, **changes: object) -> None:
    """Change values of config.json."""
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def load(path: Path, impl: str = "auto") -> LLM:
    return LLM(
        str(path), platform="cpu", dtype="float32", model_impl=impl, skip_tokenizer_init=True
    )


def continued(twin, prompt: list[int]) -> list[int]:
    """Return the tokens that transformers finds likeliest, one after the other."""
    tokens = list(prompt)
    for _ in range(COUNT):
        with torch.inference_mode():
            logits = twin(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        (best, second), (token, _) = logits.topk(2)
        assert best - second > 1e-3, "rounding could decide here; draw from another seed"
        tokens.append(int(token))
    return tokens[len(prompt) :]


def test_tokens_are_those_of_transformers(twin, tmp_path: Path) -> None:
    expected = [continued(twin, prompt) for prompt in PROMPTS]
    assert len({token for tokens in expected for token in tokens}) > COUNT // 2
    with load(tmp_path) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=COUNT)
        results = llm.generate([TokensPrompt(prompt) for prompt in PROMPTS], params)
    assert [list(result.outputs[0].token_ids) for result in results] == expected


def test_tensors_are_ignored_by_name_alone(twin, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    weights, ignoring = load_file(file), isinstance(twin, MixtralForCausalLM)
    save_file({**weights, "mtp.norm.weight": torch.ones(32)}, file)
    if ignoring:
        load(tmp_path).close()
        save_file({**weights, "mtb.norm.weight": torch.ones(32)}, file)
    with pytest.raises(CheckpointError, match=r"mt[bp]\.norm\.weight"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("twin", "values", "message"),
    [
        ("PatchworkForCausalLM", {"num_experts_per_tok": 5}, "num_experts_per_tok is 5.*4 experts"),
        ("PatchworkForCausalLM", {"sliding_window": 8}, "sliding_window is 8"),
        ("BraidForCausalLM", {"attn_layer_indices": 1}, "attn_layer_indices is 1.*a list"),
        ("BraidForCausalLM", {"mamba_n_groups": 3}, "mamba_n_groups is 3.*4 heads"),
    ],
    indirect=["twin"],
)
def test_values_are_refused_by_their_keys(twin, values, message, tmp_path: Path) -> None:
    write(tmp_path, **values)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_transformers_has_no_code_of_these_names(twin, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"transformers .* has no class of the name"):
        load(tmp_path, "transformers")
