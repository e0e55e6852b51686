"""Experts that a checkpoint has in one tensor of a layer are those that it has one by one."""

import random
import shutil

import pytest
import torch
from safetensors import safe_open

#: A variant of each family whose checkpoints have experts one by one.
FAMILIES = [
    "dots1",
    "ernie4_5-moe",
    "glm4-moe-lite",
    "minimax-m2",
    "phi-moe",
    "qwen3-next",
    "deepseek-v2-experts",
    "deepseek-v3-experts",
    "glm4-moe",
    "mixtral",
    "olmoe",
    "qwen2-moe",
    "qwen3-moe",
    "qwen3.5-moe",
]


@pytest.mark.parametrize("name", FAMILIES)
def test_either_layout_gives_the_same_logits(name, variants, checkpoints, stepper_class, tmp_path):
    checkpoint = checkpoints.get(variants[name])
    checkpoint.model.save_pretrained(tmp_path, save_original_format=False)
    shutil.copy(checkpoint.path / "config.json", tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert any(key.endswith(".experts.gate_up_proj") for key in file.keys())  # noqa: SIM118
    text = [random.randrange(256) for _ in range(20)]
    ours = [stepper_class(path, 64).step({0: text})[0] for path in (checkpoint.path, tmp_path)]
    assert torch.equal(*ours)
