"""Qwen3-Next: sizes as published, which layers attend, layers for drafts, bad values named."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError

SMALL = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 0}


def specs(ctx, wanted):
    return [spec for slot, spec in ctx.selector.decisions if slot == wanted]


def test_parameters_are_theirs(build_family):
    config = transformers.Qwen3NextConfig(num_hidden_layers=4, num_experts=16)
    with torch.device("meta"):
        theirs = transformers.Qwen3NextForCausalLM(config)
    ours = build_family("Qwen3Next", sized=False, num_hidden_layers=4, num_experts=16)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    assert counted == sum(p.numel() for p in theirs.parameters())


def test_layers_and_their_norms(build_family):
    ctx = build_family("Qwen3Next", **SMALL, full_attention_interval=2, num_hidden_layers=4)
    assert [layer.cache_spec.kind for layer in ctx.cache_layers] == ["state", "full"] * 2
    assert {spec.weight_offset for spec in specs(ctx, "add_rms_norm")} == {1.0}
    (rotary,) = specs(ctx, "rotary_and_cache")
    assert (rotary.rotary_dim, rotary.head_dim, rotary.qk_norm_offset) == (64, 256, 1.0)
    (delta,) = specs(ctx, "gated_delta")
    assert (delta.num_heads, delta.num_key_heads, delta.decay, delta.gate) == (4, 2, "head", "silu")


def test_layers_for_drafts_are_counted(build_family):
    weights = build_family("Qwen3Next", **SMALL, num_hidden_layers=4).weights
    assert not weights.wants("mtp.layers.0.mlp.gate.weight")
    assert weights.notice() == {"unused weights": "1 tensors of layers that predict further tokens"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"linear_num_key_heads": 3}, "linear_num_key_heads is 3.*4 heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'.*silu"),
        ({"layer_types": ["linear_attention", "mamba"]}, "layer_types.*knows only"),
        ({"layer_types": ["linear_attention"]}, "layer_types.*each of 2 layers"),
        ({"layer_types": [["full_attention"]] * 2}, "layer_types.*knows only"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok is 5.*4 experts"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
        ({"linear_key_head_dim": "8"}, "linear_key_head_dim"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Qwen3Next", **{**SMALL, **values})
