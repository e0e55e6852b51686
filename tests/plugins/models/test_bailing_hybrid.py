"""Ling 3: sizes as transformers has them, published keys, decays with a floor, bad values named."""

import math

import pytest
import torch
import transformers
from packaging.version import Version
from tests.plugins.models.conftest import OLDEST

from hotshoe.errors import CheckpointError

SMALL = {"head_dim": 8, "num_experts": 16, "num_experts_per_token": 2, "layer_group_size": 2}
SMALL["first_k_dense_replace"] = 1


def specs(ctx, wanted):
    return [spec for slot, spec in ctx.selector.decisions if slot == wanted]


@pytest.mark.skipif(Version(transformers.__version__) < Version(OLDEST), reason="has no Ling 3")
def test_parameters_are_theirs(build_family):
    config = transformers.BailingHybridConfig(num_hidden_layers=6, num_local_experts=16)
    with torch.device("meta"):
        theirs = transformers.BailingHybridForCausalLM(config)
    ours = build_family("BailingHybrid", sized=False, num_hidden_layers=6, num_experts=16)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    corrections = 4 * 16  # which transformers counts as no parameters
    assert counted == sum(p.numel() for p in theirs.parameters()) + corrections


def test_published_keys(build_family):
    ctx = build_family("BailingHybrid", **SMALL, short_conv_kernel_size=3, kda_lower_bound=-4.0)
    assert [layer.cache_spec.kind for layer in ctx.cache_layers] == ["state", "latent"]
    (delta,) = specs(ctx, "gated_delta")
    assert (delta.num_heads, delta.key_dim, delta.value_dim, delta.conv_width) == (8, 8, 8, 3)
    assert (delta.decay, delta.gate, delta.decay_floor) == ("channel", "sigmoid", -4.0)
    (plain,) = specs(build_family("BailingHybrid", **SMALL, kda_safe_gate=False), "gated_delta")
    assert plain.decay_floor is None


def test_layers_behind_the_last_are_not_read(build_family):
    ctx = build_family("BailingHybrid", **SMALL)
    known = ctx.weights.known_as("model.layers.1.attention.dense.weight")
    assert known == "model.layers.1.self_attn.o_proj.weight"
    assert "model.layers.1.self_attn.g_proj.weight" in ctx.weights.expected
    assert not any(name.startswith("model.layers.2.") for name in ctx.weights.expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kda_lower_bound": 1.0}, "kda_lower_bound is 1.0.*below 0"),
        ({"kda_lower_bound": True}, "kda_lower_bound.*below 0"),
        ({"kda_safe_gate": 1}, "kda_safe_gate.*true or false"),
        ({"layer_types": ["mamba", "full_attention"]}, "layer_types.*knows only"),
        ({"num_expert_group": 3, "topk_group": 1}, "num_experts is 16.*3 equal groups"),
        ({"layer_group_size": 0}, "layer_group_size"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("BailingHybrid", **{**SMALL, **values})
