"""Writes tiny model directories with random weights: config.json and a safetensors file.

The weights' names and shapes are what the model's own layers ask for, so a new architecture needs
a configuration and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotshoe.config import EngineConfig
from hotshoe.engine.start.setup import prepare
from hotshoe.plugins import PluginManager
from hotshoe_conformance.host import PLATFORM

_COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
}
#: Between them they ask for every slot and for most fields of the specifications.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", **_COMMON},
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_act": "silu",
        **_COMMON,
        "head_dim": 32,
        "tie_word_embeddings": True,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        **_COMMON,
        "num_hidden_layers": 2,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 24,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
}
_TYPES = {torch.float32: "F32"}


def write_model(name: str, path: Path, plugins: PluginManager, seed: int) -> Path:
    """Write one of `MODELS` into a new directory.

    Args:
        plugins: They must know the host platform and the architecture.
    """
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(MODELS[name]))
    config = EngineConfig(str(path), platform=PLATFORM, skip_tokenizer_init=True)
    ctx, _ = prepare(config, plugins).torch_worker().build()
    source = torch.Generator().manual_seed(seed)
    tensors = {}
    for key, expected in sorted(ctx.weights.expected.items()):
        values = torch.randn(expected.shape, generator=source)
        if len(expected.shape) == 1:
            tensors[key] = 1 + 0.2 * values  # norms
        else:
            # Spread enough that the likeliest token stands clear of the second.
            tensors[key] = values * 1.5 * expected.shape[-1] ** -0.5
    write_safetensors(path / "model.safetensors", tensors)
    return path


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file. Source: https://github.com/huggingface/safetensors."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())
