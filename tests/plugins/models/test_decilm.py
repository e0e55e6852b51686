"""Layers of DeciLM: what they lack computes nothing, and each has its own sizes."""

import json
import random
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.models.conftest import Variant, save_tiny
from tests.plugins.models.test_published import DIM, LAYERS, USUAL, compare

from hotshoe.errors import CheckpointError


def block(group: int | None, mlp: dict | None) -> dict:
    """Return an entry of `block_configs`."""
    attention = {"no_op": group is None, "n_heads_in_group": group, "replace_with_linear": False}
    return {"attention": attention, "ffn": mlp or {"no_op": True}}


DECI = [
    block(2, {"no_op": False, "ffn_mult": 2.0, "intermediate_size": None}),
    block(None, {"ffn_mult": 2.0}),
    block(4, {"intermediate_size": 40}),
    block(2, None),
    block(2, {"ffn_mult": 2.0}),
]


def test_layers_of_decilm_differ(stepper_class, tmp_path):
    """Missing parts of a layer compute what matrices of zeros do."""
    values = {"num_hidden_layers": len(DECI), "intermediate_size": 256}
    made = save_tiny(Variant("deci", "Llama", values), tmp_path, random.getrandbits(31))
    tensors = load_file(tmp_path / "model.safetensors")
    layers = made.model.model.layers
    with torch.no_grad():
        layers[1].self_attn.o_proj.weight.zero_()
        layers[3].mlp.down_proj.weight.zero_()
        layers[2].mlp.down_proj.weight[:, 40:].zero_()
        for part in (layers[2].self_attn.k_proj, layers[2].self_attn.v_proj):
            part.weight[DIM:] = part.weight[:DIM]
    gone = r"layers\.(1\.(self_attn|input_layernorm)|3\.(mlp|post_attention_layernorm))\."
    kept = {key: tensor for key, tensor in tensors.items() if not re.search(gone, key)}
    narrow = "model.layers.2."
    for part in "kv":
        kept[f"{narrow}self_attn.{part}_proj.weight"] = kept[
            f"{narrow}self_attn.{part}_proj.weight"
        ][:DIM].contiguous()
    for part in ("gate", "up"):
        kept[f"{narrow}mlp.{part}_proj.weight"] = kept[f"{narrow}mlp.{part}_proj.weight"][:40]
    kept[f"{narrow}mlp.down_proj.weight"] = kept[f"{narrow}mlp.down_proj.weight"][:, :40]
    save_file({k: t.contiguous() for k, t in kept.items()}, tmp_path / "model.safetensors")
    config = {**USUAL, "num_hidden_layers": len(DECI), "num_key_value_heads": None}
    config |= {"architectures": ["DeciLMForCausalLM"], "block_configs": DECI}
    (tmp_path / "config.json").write_text(json.dumps(config))
    compare(made, tmp_path, stepper_class)


def test_decilm_7b_names_its_kv_heads(build_family):
    spec = {**USUAL, "num_key_value_heads_per_layer": [4, 2, 1]}
    model = build_family("DeciLM", **spec)
    names = [f"model.layers.{i}.self_attn.k_proj.weight" for i in range(LAYERS)]
    assert [model.weights.expected[name].shape[0] for name in names] == [64, 32, 16]


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("DeciLM", {"block_configs": [{}]}, "block_configs"),
        ("DeciLM", {"block_configs": [block(None, None)] * 3}, "attention or an MLP in each"),
        ("DeciLM", {"block_configs": [block(3, {"ffn_mult": 1.0})] * 3}, "n_heads_in_group"),
        (
            "DeciLM",
            {"block_configs": [block(2, {"replace_with_linear": True})] * 3},
            "does without",
        ),
        ("DeciLM", {}, "num_key_value_heads_per_layer"),
    ],
)
def test_what_is_not_described_is_named(family, values, message, build_family):
    with pytest.raises(CheckpointError, match=message):
        build_family(family, **{**USUAL, "moe_intermediate_size": 8, **values})
