"""Qwen3.5: sizes as transformers has them, names of models that see, bad values named."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError

SMALL = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_hidden_layers": 4}


@pytest.mark.parametrize(("family", "more"), [("Qwen3_5", {}), ("Qwen3_5Moe", {"num_experts": 8})])
def test_parameters_are_theirs(build_family, family, more):
    values = {"num_hidden_layers": 4, **more}
    config = getattr(transformers, f"{family}TextConfig")(**values)
    with torch.device("meta"):
        theirs = getattr(transformers, f"{family}ForCausalLM")(config)
    ours = build_family(family, sized=False, **values)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    assert counted == sum(p.numel() for p in theirs.parameters())


def test_every_fourth_layer_attends(build_family):
    ctx = build_family("Qwen3_5", **SMALL)
    assert [layer.cache_spec.kind for layer in ctx.cache_layers] == ["state"] * 3 + ["full"]


def test_both_spellings_of_names_and_layers_for_drafts(build_family):
    weights = build_family("Qwen3_5", **SMALL).weights
    name = "layers.0.linear_attn.in_proj_qkv.weight"
    assert weights.known_as(f"model.language_model.{name}") == f"model.{name}"
    assert f"model.{name}" in weights.expected
    assert not weights.wants("mtp.fc.weight")
    assert "layers that predict further tokens" in weights.notice()["unused weights"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok is 5.*4 experts"),
        ({"num_experts": 0}, "num_experts"),
        ({"linear_num_value_heads": 3}, "linear_num_key_heads is 2.*3 heads"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Qwen3_5Moe", **{**SMALL, **values})
