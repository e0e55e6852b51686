"""PLM against Youtu-LLM, whose MLPs square what is positive of their ups."""

import json
import random
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from safetensors.torch import save_file
from tests.plugins.models.conftest import Checkpoint, Variant, save_tiny
from tests.plugins.models.test_published import COMMON, HEADS, LAYERS, compare

SIZES = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": 1e-6,
}
YOUTU = Variant(
    "plm",
    "Youtu",
    {
        **COMMON,
        **SIZES,
        "q_lora_rank": None,
        "num_key_value_heads": HEADS,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
    },
)


def squared(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    return mlp.down_proj(mlp.up_proj(x).relu().square())


def as_plm(made: Checkpoint) -> Checkpoint:
    """Let MLPs of a Youtu have no gates."""
    for layer in made.model.model.layers:
        del layer.mlp.gate_proj
        layer.mlp.forward = MethodType(squared, layer.mlp)
    return made


def test_logits_are_those_of_the_same_model(stepper_class, tmp_path: Path) -> None:
    """Its defaults rotate by a base of 100,000, in pairs of neighbors."""
    made = as_plm(save_tiny(YOUTU, tmp_path / "source", random.getrandbits(31)))
    tensors = {n: t for n, t in made.model.state_dict().items() if n != "lm_head.weight"}
    (tmp_path / "target").mkdir()
    save_file(tensors, tmp_path / "target" / "model.safetensors")
    config = {**COMMON, **SIZES, "architectures": ["PLMForCausalLM"]}
    (tmp_path / "target" / "config.json").write_text(json.dumps(config))
    compare(made, tmp_path / "target", stepper_class)
