"""NeoBERT as published: EuroBERT with other names, whose neighbors are rotated in pairs."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.models.test_bert import OPTIONS, PROMPTS, close, states
from tests.plugins.models.test_encoder import made

from hotshoe import LLM, PoolingParams, TokensPrompt
from hotshoe.errors import CheckpointError

HEADS, SIZE = 4, 64
NAMES = {
    "embed_tokens.": "encoder.",
    "layers.": "transformer_encoder.",
    "self_attn.o_proj": "wo",
    "mlp.down_proj": "ffn.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def neighbors(rows: torch.Tensor) -> torch.Tensor:
    """Bring channels of each head that are half a head apart next to each other."""
    return rows.view(HEADS, 2, -1, SIZE).transpose(1, 2).reshape(HEADS, -1, SIZE)


def publish(path, head: bool):
    """Save a model of transformers as NeoBERT's; return it."""
    model = made(path, "EuroBert", intermediate_size=96, num_key_value_heads=HEADS)
    tensors, found = load_file(path / "model.safetensors"), {}
    for i in range(model.config.num_hidden_layers):
        layer = f"layers.{i}."
        q, k, v = (tensors.pop(f"{layer}self_attn.{part}_proj.weight") for part in "qkv")
        stacked = torch.stack([neighbors(q), neighbors(k), v.view(HEADS, -1, SIZE)], 1)
        found[f"transformer_encoder.{i}.qkv.weight"] = stacked.reshape(-1, SIZE)
        mlp = (tensors.pop(f"{layer}mlp.{part}_proj.weight") for part in ("gate", "up"))
        found[f"transformer_encoder.{i}.ffn.w12.weight"] = torch.cat(list(mlp))
    found["layer_norm.weight"] = tensors.pop("norm.weight")
    for name, tensor in tensors.items():
        for old, new in NAMES.items():
            name = name.replace(old, new)
        found[name] = tensor
    if head:
        found = {f"model.{name}": tensor for name, tensor in found.items()}
        found["decoder.weight"], found["decoder.bias"] = torch.zeros(128, SIZE), torch.zeros(128)
    save_file({k: t.contiguous() for k, t in found.items()}, path / "model.safetensors")
    config = {
        "architectures": ["NeoBERTLMHead" if head else "NeoBERT"],
        "vocab_size": model.config.vocab_size,
        "hidden_size": SIZE,
        "num_hidden_layers": model.config.num_hidden_layers,
        "num_attention_heads": HEADS,
        "intermediate_size": 144,  # two thirds of which are meant
        "norm_eps": model.config.rms_norm_eps,
        "rope_theta": model.config.rope_parameters["rope_theta"],
        "max_length": 128,
    }
    (path / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize("head", [False, True])
def test_vectors_are_those_of_the_same_model(tmp_path, head) -> None:
    model = publish(tmp_path, head)
    with LLM(str(tmp_path), pooling="mean", max_model_len=128, **OPTIONS) as llm:
        found = llm.embed([TokensPrompt(p) for p in PROMPTS], PoolingParams(normalize=False))
    for prompt, output in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            close(output.embedding, states(model, prompt).mean(0), 1e-4)


@pytest.mark.parametrize("values", [{"rope": False}, {"rms_norm": False}, {"hidden_act": "gelu"}])
def test_other_shapes_are_refused(tmp_path, values) -> None:
    publish(tmp_path, True)
    with pytest.raises(CheckpointError, match=next(iter(values))):
        LLM(str(tmp_path), hf_overrides=values, max_model_len=128, **OPTIONS).close()
