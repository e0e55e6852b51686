"""Kimi-Linear: sizes as transformers has them, published keys, no rotation, bad values named."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError
from hotshoe.layers import Rotation
from hotshoe_models import latent

SMALL = {"linear_num_heads": 4, "linear_head_dim": 8, "num_experts": 4, "num_experts_per_token": 2}
WITHIN = {"full_attn_layers": [2], "kda_layers": [1], "head_dim": 16, "num_heads": 2}


def specs(ctx, wanted):
    return [spec for slot, spec in ctx.selector.decisions if slot == wanted]


def test_parameters_are_theirs(build_family):
    config = transformers.KimiLinearConfig(num_hidden_layers=5, num_local_experts=8)
    with torch.device("meta"):
        theirs = transformers.KimiLinearForCausalLM(config)
    ours = build_family("KimiLinear", sized=False, num_hidden_layers=5, num_experts=8)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    corrections = 4 * 8  # which transformers counts as no parameters
    assert counted == sum(p.numel() for p in theirs.parameters()) + corrections * (
        not any("correction" in name for name, _ in theirs.named_parameters())
    )


def test_published_keys(build_family):
    ctx = build_family("KimiLinear", **SMALL, linear_attn_config=WITHIN)
    assert [layer.cache_spec.kind for layer in ctx.cache_layers] == ["state", "latent"]
    (delta,) = specs(ctx, "gated_delta")
    assert (delta.num_heads, delta.num_key_heads, delta.key_dim, delta.value_dim) == (2, 2, 16, 16)
    assert (delta.decay, delta.gate, delta.num_decays) == ("channel", "sigmoid", 32)
    names = ctx.weights.expected
    assert names["model.layers.0.self_attn.A_log"].shape == (1, 1, 2, 1)
    assert ctx.weights.known_as("model.layers.1.block_sparse_moe.gate.weight") in names


def test_nothing_is_rotated(build_family, monkeypatch):
    found = []
    build = latent.LatentAttention
    monkeypatch.setattr(latent, "LatentAttention", lambda *a: found.append(a[2]) or build(*a))
    build_family("KimiLinear", **SMALL, linear_attn_config=WITHIN)
    (rotary,) = found
    cosines, sines = rotary.table.chunk(2, dim=1)
    assert rotary.rotary_dim == 64 and torch.all(cosines == 1) and not sines.any()
    assert Rotation((0.0,) * 32).rotary_dim == 64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"linear_attn_config": {"full_attn_layers": [0]}}, "linear_attn_config.*its 2 layers"),
        ({"linear_attn_config": [1]}, "linear_attn_config.*an object"),
        ({"layer_types": ["mamba", "full_attention"]}, "layer_types.*knows only"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types.*each of 2 layers"),
        ({"mlp_layer_types": ["dense", "wide"]}, "mlp_layer_types.*dense and sparse"),
        ({"num_experts_per_token": 5}, "num_experts_per_token is 5.*4 experts"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func is .*sigmoid"),
        ({"linear_head_dim": 0}, "linear_head_dim"),
        ({"mla_use_nope": False}, "mla_use_nope is False.*rotates nothing"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2.*every layer"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy'.*noaux_tc"),
        ({"linear_attn_config": {**WITHIN, "kda_layers": [2]}}, "either full_attn_layers or kda"),
        ({"linear_attn_config": {**WITHIN, "kda_layers": 1}}, "either full_attn_layers or kda"),
        ({"linear_attn_config": {"kda_layers": [1]}}, "either full_attn_layers or kda_layers"),
        ({"linear_attn_config": {"head_dim": 0}}, r"linear_attn_config\.head_dim must be"),
        ({"num_experts": "4"}, "json: num_experts must be"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("KimiLinear", **{**SMALL, **values})
