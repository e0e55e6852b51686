"""A.X K2: gates of norms and of channels, groups that files leave out, bad values named."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "gated_norm_rank": 6,
}


def test_published_names(build_family):
    ctx = build_family("AXK2", **SMALL, first_k_dense_replace=1)
    shapes = {name: found.shape for name, found in ctx.weights.expected.items()}
    assert shapes["model.layers.0.self_attn.q_b_proj.weight"] == (8 * (16 + 12), 2 * 24)
    assert shapes["model.layers.0.input_layernorm.W_down.weight"] == (6, 128)
    assert shapes["model.layers.0.post_attention_layernorm.weight"] == (128,)
    assert shapes["model.layers.1.post_attention_layernorm.norm.weight"] == (128,)
    assert shapes["model.layers.1.post_attention_layernorm.W_up.weight"] == (128, 6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gated_norm_rank": 0}, "gated_norm_rank"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ({"n_group": 3, "topk_group": 1}, "n_routed_experts is 8.*3 equal groups"),
        ({"layer_types": ["full_attention"] * 2}, "layer_types.*indexed_attention"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("AXK2", **{**SMALL, **values})
