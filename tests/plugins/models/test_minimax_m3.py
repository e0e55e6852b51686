"""MiniMax M3: published keys and names, and texts too long for the blocks that it reads."""

import pytest

from hotshoe.errors import CheckpointError, ConfigError

SMALL = {"head_dim": 16, "num_key_value_heads": 2, "num_local_experts": 4, "rotary_dim": 8}
#: A choice of all blocks of 16 tokens.
CHOOSES = {"sparse_block_size": 4, "sparse_topk_blocks": 4, "sparse_attention_freq": [0, 1]}
PUBLISHED = {**SMALL, "sparse_attention_config": CHOOSES, "moe_layer_freq": [0, 1]}


def test_published_keys_and_names(build_family):
    ctx = build_family("MiniMaxM3VL", **PUBLISHED, hidden_act="swigluoai")
    names = set(ctx.weights.expected)
    assert "model.layers.0.mlp.gate_up_proj.weight" in names
    assert "model.layers.1.block_sparse_moe.experts.3.w1.weight" in names
    known = ctx.weights.known_as("model.layers.1.mlp.gate.e_score_correction_bias")
    assert known == "model.layers.1.block_sparse_moe.e_score_correction_bias"
    assert known in names
    for name in ("self_attn.index_q_proj", "self_attn.indexer.k_norm"):
        assert not ctx.weights.wants(f"model.layers.1.{name}.weight")


def test_longer_texts_are_refused_where_layers_choose(build_family):
    with pytest.raises(ConfigError, match=r"4 blocks of 4 tokens.* --max-model-len of 16 or less"):
        build_family("MiniMaxM3VL", **PUBLISHED, max_model_len=17)
    build_family("MiniMaxM3VL", **SMALL, max_model_len=17)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mlp_layer_types": ["sparse", "moe"]}, "mlp_layer_types.*dense or sparse for each of 2"),
        ({"mlp_layer_types": [[], "dense"]}, "mlp_layer_types"),
        ({"moe_layer_freq": [1]}, "mlp_layer_types.*each of 2"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types.*knows only"),
        ({"sparse_attention_config": []}, "sparse_attention_config.*object"),
        ({"rotary_dim": 32}, "rotary_dim is 32.*16 channels"),
        ({"swiglu_limit": 0}, "swiglu_limit.*positive"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("MiniMaxM3VL", **{**SMALL, **values})
