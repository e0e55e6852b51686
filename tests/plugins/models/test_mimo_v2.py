"""MiMo V2: what layers differ in, both spellings of files, and what is refused."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError

SMALL = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "head_dim": 24,
    "v_head_dim": 16,
    "sliding_window": 9,
}


def attentions(ctx):
    return [layer.spec for layer in ctx.cache_layers]


def test_parameters_are_theirs(build_family):
    values = {"num_hidden_layers": 2, "n_routed_experts": 8}
    with torch.device("meta"):
        config = transformers.MiMoV2FlashConfig(**values)
        theirs = transformers.MiMoV2FlashForCausalLM(config)
    ours = build_family("MiMoV2Flash", sized=False, **values)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    buffers = sum(b.numel() for name, b in theirs.named_buffers() if "correction" in name)
    assert counted == sum(p.numel() for p in theirs.parameters()) + buffers


def test_layers_differ_in_heads_windows_and_sinks(build_family):
    ctx = build_family("MiMoV2Flash", **SMALL)
    found = [(s.num_kv_heads, s.window, s.sinks, s.v_head_dim) for s in attentions(ctx)]
    assert found == [(2, None, False, 16), (4, 9, True, 16), (4, 9, True, 16)]
    k, v = ctx.cache_layers[0].cache_spec.parts
    assert (k.shape, v.shape) == ((4, 2, 24), (4, 2, 16)) and k.nbytes == v.nbytes
    even = attentions(build_family("MiMoV2Flash", **{**SMALL, "v_head_dim": 24}))
    assert {spec.v_head_dim for spec in even} == {None}


def test_published_spellings(build_family):
    ctx = build_family(
        "MiMoV2Flash",
        **SMALL,
        hybrid_layer_pattern=[1, 0, 1],
        moe_layer_freq=[0, 0, 1],
        sliding_window_size=5,
        swa_num_key_value_heads=8,
        add_swa_attention_sink_bias=False,
        add_full_attention_sink_bias=True,
    )
    found = [(s.num_kv_heads, s.window, s.sinks) for s in attentions(ctx)]
    assert found == [(8, 6, False), (2, None, True), (8, 6, False)]
    gates = [i for i in range(3) if f"model.layers.{i}.mlp.gate.weight" in ctx.weights.expected]
    assert gates == [2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"v_head_dim": 32}, "v_head_dim is 32.*no more than 24"),
        ({"swa_head_dim": 16}, "swa_head_dim is 16.*head_dim of its other layers"),
        ({"swa_num_key_value_heads": 3}, "num_attention_heads is 8.*3 kv heads"),
        ({"hybrid_layer_pattern": [0, 2, 1]}, r"hybrid_layer_pattern is \[0, 2, 1\].*0 or 1"),
        ({"hybrid_layer_pattern": [0, 1]}, "layer_types.*each of 3"),
        ({"attention_value_scale": -1}, "attention_value_scale is -1.*positive"),
        ({"scoring_func": "softmax"}, "scoring_func.*sigmoid"),
        ({"add_swa_attention_sink_bias": "no"}, "add_swa_attention_sink_bias.*true or false"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("MiMoV2Flash", **{**SMALL, **values})
