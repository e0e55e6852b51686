"""Gemma 4: sizes of heads in both spellings, shared keys and values, whatever cannot be served."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError
from hotshoe_models.gemma4 import ROPE

SMALL = {"head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 4}
SLIDING, FULL = "sliding_attention", "full_attention"


def sizes(ctx):
    return [(a.spec.window, a.spec.num_kv_heads, a.spec.head_dim) for a in ctx.cache_layers]


@pytest.mark.parametrize(
    "values",
    [
        {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
        {
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 8,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 2,
            "hidden_size_per_layer_input": 0,
        },
    ],
)
def test_parameters_are_theirs(build_family, values):
    values = {"num_hidden_layers": 12, **values}
    config = transformers.Gemma4TextConfig(**values)
    with torch.device("meta"):
        theirs = transformers.Gemma4ForCausalLM(config)
    ours = build_family("Gemma4", sized=False, **values).weights.expected
    counted = sum(math.prod(weight.shape) for weight in ours.values())
    scales = 12  # buffers of theirs
    assert counted == sum(p.numel() for p in theirs.parameters()) + scales


def test_unified_has_neither_inputs_of_layers_nor_experts(build_family):
    values = {"num_hidden_layers": 7, "num_kv_shared_layers": 1}
    with torch.device("meta"):
        config = transformers.Gemma4UnifiedTextConfig(**values)
        theirs = transformers.Gemma4UnifiedForCausalLM(config)
    ctx = build_family("Gemma4Unified", sized=False, **values)
    counted = sum(math.prod(weight.shape) for weight in ctx.weights.expected.values())
    assert counted == sum(p.numel() for p in theirs.parameters()) + 7
    assert [window for window, _, _ in sizes(ctx)] == [1024] * 5 + [None]


def test_both_spellings_of_sizes_mean_the_same(build_family):
    types = [SLIDING, FULL]
    more = {**SMALL, "layer_types": types, "sliding_window": 9, "attention_k_eq_v": True}
    older = build_family("Gemma4", **more, num_global_key_value_heads=1)
    own = {"1": {"head_dim": 32, "num_key_value_heads": 1}}
    newer = build_family("Gemma4", **more, per_layer_config=own)
    assert sizes(older) == sizes(newer) == [(9, 8, 16), (None, 1, 32)]
    ungated = build_family(
        "Gemma4", **{**more, "attention_k_eq_v": False}, num_global_key_value_heads=1
    )
    assert sizes(ungated)[1] == (None, 8, 32)


def test_every_sixth_layer_and_the_last_attend_to_everything(build_family):
    ctx = build_family("Gemma4", **SMALL, num_hidden_layers=8, sliding_window=9)
    assert [window for window, _, _ in sizes(ctx)] == [9] * 5 + [None, 9, None]


def test_shared_layers_ask_for_no_cache_and_their_leftover_weights_are_skipped(build_family):
    types = [SLIDING, FULL] * 3
    ctx = build_family(
        "Gemma4", **SMALL, num_hidden_layers=6, layer_types=types, num_kv_shared_layers=3
    )
    assert len(ctx.cache_layers) == 3
    assert not ctx.weights.wants("model.layers.4.self_attn.k_proj.weight")
    assert ctx.weights.wants("model.layers.2.self_attn.k_proj.weight")
    assert ctx.weights.wants("model.layers.4.self_attn.q_norm.weight")


def test_the_default_rotation_is_theirs():
    config = transformers.Gemma4TextConfig(num_hidden_layers=2)
    assert config.rope_parameters == ROPE


BAD = [
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention.*all"),
    ({"num_kv_shared_layers": 2}, "num_kv_shared_layers is 2"),
    ({"num_kv_shared_layers": 1}, "num_kv_shared_layers is 1.*each type"),
    ({"per_layer_config": {"1": {"sliding_window": 4}}}, "per_layer_config.*head_dim"),
    ({"per_layer_config": {"5": {"head_dim": 4}}}, "per_layer_config.*2 layers"),
    (
        {"layer_types": [FULL, FULL], "per_layer_config": {"1": {"head_dim": 4}}},
        "per_layer_config.*one size",
    ),
    ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters"),
    ({"rope_parameters": {**ROPE, FULL: {"partial_rotary_factor": 0.5}}}, "whole heads"),
    ({"enable_moe_block": True}, "num_experts"),
    ({"num_key_value_heads": 3}, "num_key_value_heads is 3|3 kv heads"),
    ({"hidden_size_per_layer_input": -1}, "hidden_size_per_layer_input"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Gemma4", **{**SMALL, **values})
