"""Hy4: sizes as transformers has them, streams that do not mix, sinks, bad values named."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError

SMALL = {
    "num_hidden_layers": 6,
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 6,
}


def specs(ctx, wanted):
    return [spec for slot, spec in ctx.selector.decisions if slot == wanted]


def test_parameters_are_theirs(build_family):
    config = transformers.HYV4Config(num_hidden_layers=3, n_routed_experts=8)
    with torch.device("meta"):
        theirs = transformers.HYV4ForCausalLM(config)
    ours = build_family("HYV4", sized=False, num_hidden_layers=3, n_routed_experts=8)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    corrections = 2 * 8  # which transformers counts as no parameters
    assert counted == sum(p.numel() for p in theirs.parameters()) + corrections


def test_layers_and_operations(build_family):
    ctx = build_family("HYV4", **SMALL, hc_magnitude=3.0)
    names = ctx.weights.expected
    indexed = [i for i in range(6) if f"model.layers.{i}.self_attn.indexer.wk.weight" in names]
    assert indexed == [0, 1, 5]
    [sparse] = specs(ctx, "sparse_mla_attention")
    assert sparse.sinks and sparse.top_k == 6 and not sparse.attention.interleaved
    within, behind = specs(ctx, "hyper_connection")
    assert not within.mixes and not behind.mixes and behind.ends
    assert (within.magnitude, within.gates, within.scales) == (3.0, 4, 2)
    assert (behind.gates, behind.joining, behind.scales) == (0, 4, 1)


def test_published_names_are_known(build_family):
    weights, layer = build_family("HYV4", **SMALL).weights, "model.layers.1"
    for theirs, ours in {
        f"{layer}.self_attn.learnable_sink_param": f"{layer}.self_attn.sinks",
        f"{layer}.self_attn.linear_gate.weight": f"{layer}.self_attn.gate_proj.weight",
        f"{layer}.hc_attn_layer.hc_pre.hc_fn": f"{layer}.hc_attn_fn",
        f"{layer}.hc_mlp_layer.hc_pre.hc_scale": f"{layer}.hc_ffn_scale",
        f"{layer}.ffn_hc.base": f"{layer}.hc_ffn_base",
        "model.hc_head.hc_head_base": "model.hc_head.hc_base",
    }.items():
        assert weights.known_as(theirs) == ours and ours in weights.expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"indexer_types": ["shared"] * 6}, "indexer_types is .*in its first layer"),
        ({"layer_types": ["full_attention"] * 6}, "layer_types.*indexed_attention in each"),
        ({"index_head_dim": 4}, "index_head_dim is 4.*rotates 8"),
        ({"swiglu_limit": 0}, "swiglu_limit is 0"),
        ({"hc_magnitude": -1}, "hc_magnitude is -1"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
    ],
    ids=str,
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("HYV4", **{**SMALL, **values})
