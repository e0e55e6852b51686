"""MiniMax M3: published keys and names, and layers that choose where texts are long."""

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
        known = ctx.weights.known_as(f"model.layers.1.{name}.weight")
        assert not ctx.weights.wants(known)


LONG = {**SMALL, "sparse_attention_config": {**CHOOSES, "sparse_num_index_heads": 2}}


def test_layers_choose_where_texts_are_longer(build_family):
    ctx = build_family("MiniMaxM3VL", **LONG, max_model_len=17)
    known = ctx.weights.known_as("model.layers.1.self_attn.index_q_proj.weight")
    assert ctx.weights.expected[known].shape == (2 * 128, 128)
    assert known == "model.layers.1.self_attn.indexer.q_proj.weight"
    assert not any(
        name.startswith("model.layers.0.self_attn.index") for name in ctx.weights.expected
    )
    kinds = [layer.cache_spec.kind for layer in ctx.cache_layers]
    assert kinds == ["full", "index", "full", "full"]  # a cache of each key head that chooses
    plain = build_family("MiniMaxM3VL", **SMALL, max_model_len=17)
    assert [layer.cache_spec.kind for layer in plain.cache_layers] == ["full", "full"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sparse_num_index_heads": 4}, "index_n_heads is 4.*each of 2 key heads"),
        ({"sparse_index_dim": 4}, "index_head_dim is 4.*rotates 8 channels"),
        ({"sparse_local_block": 0}, "index_local_blocks"),
        ({"sparse_local_block": 5}, "index_local_blocks is 5.*reads 4 blocks at most"),
        ({"sparse_topk_blocks": 0}, "index_topk_blocks"),
        ({"sparse_block_size": "4"}, "index_block_size"),
    ],
)
def test_bad_choices_are_named(build_family, values, message):
    chosen = {**LONG["sparse_attention_config"], **values}
    with pytest.raises(CheckpointError, match=message):
        build_family("MiniMaxM3VL", **{**LONG, "sparse_attention_config": chosen}, max_model_len=17)


def test_a_block_of_the_cache_has_to_fit_into_blocks(build_family):
    chosen = {**LONG["sparse_attention_config"], "sparse_block_size": 6}
    values = {**LONG, "sparse_attention_config": chosen}
    with pytest.raises(ConfigError, match=r"block_size 4: .* blocks of 6 tokens.*--block-size 2"):
        build_family("MiniMaxM3VL", **values, max_model_len=64)


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
