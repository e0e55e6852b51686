"""PLaMo against Llama, whose MLPs take what attention takes."""

import json
import random
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.plugins.models.conftest import LENGTH, Checkpoint, Variant, save_tiny
from tests.plugins.models.test_published import (
    DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    SIZE,
    USUAL,
    Tensors,
    compare,
    renamed,
)

from hotshoe.errors import CheckpointError

CONFIG = {**USUAL, "num_key_value_heads": HEADS, "n_shared_head": HEADS // KV_HEADS}
LLAMA = Variant(
    "plamo",
    "Llama",
    {
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 96,
        "max_position_embeddings": LENGTH,
    },
)


def side_by_side(layer: Any, hidden_states: torch.Tensor, **options: Any) -> torch.Tensor:
    normed = layer.input_layernorm(hidden_states)
    return hidden_states + layer.self_attn(normed, **options)[0] + layer.mlp(normed)


def as_plamo(made: Checkpoint) -> Checkpoint:
    """Let attention and MLP of a Llama start from one norm."""
    for layer in made.model.model.layers:
        layer.forward = MethodType(side_by_side, layer)
    return made


def published(tensors: Tensors) -> Tensors:
    """Name tensors as the checkpoint does."""
    found = {name: t for name, t in tensors.items() if "post_attention" not in name}
    return renamed(found, ("model.layers", "model.layers.layers"), ("input_layernorm", "norm"))


def in_turn(tensors: Tensors) -> Tensors:
    """Let heads of queries take turns with keys."""
    shape = (KV_HEADS, HEADS // KV_HEADS, DIM, SIZE)

    def turned(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(shape).transpose(0, 1).reshape(-1, SIZE)

    for name in tensors:
        if "q_proj" in name:
            tensors[name] = turned(tensors[name])
        if "o_proj" in name:
            tensors[name] = turned(tensors[name].T).T
    return tensors


def test_logits_are_those_of_the_same_model(stepper_class, tmp_path: Path) -> None:
    made = as_plamo(save_tiny(LLAMA, tmp_path / "source", random.getrandbits(31)))
    tensors = in_turn(published(made.model.state_dict()))
    (tmp_path / "target").mkdir()
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        tmp_path / "target" / "model.safetensors",
    )
    config = {**CONFIG, "architectures": ["PlamoForCausalLM"]}
    (tmp_path / "target" / "config.json").write_text(json.dumps(config))
    compare(made, tmp_path / "target", stepper_class)


def test_heads_that_cannot_share_are_refused(stepper_class, tmp_path: Path) -> None:
    config = {**CONFIG, "architectures": ["PlamoForCausalLM"], "n_shared_head": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="n_shared_head is 3"):
        stepper_class(tmp_path, LENGTH)
