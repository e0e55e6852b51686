"""Dots 3 Note: sizes of layers with a window, published keys, bad values named."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {
    "num_hidden_layers": 3,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "index_head_dim": 16,
    "swa_num_attention_heads": 4,
    "swa_kv_lora_rank": 24,
    "sliding_window_size": 5,
}
ROPES = {"indexed_attention": {}, "sliding_attention": 5}
PER_LAYER = {"2": {"num_attention_heads": 2, "qk_nope_head_dim": 8, "qk_rope_head_dim": 16}}


def attended(ctx):
    return [spec for slot, spec in ctx.selector.decisions if slot == "sparse_mla_attention"]


def test_published_keys(build_family):
    ctx = build_family("Dots3Note", **SMALL)
    kinds = [layer.cache_spec.kind for layer in ctx.cache_layers]
    assert kinds == ["index", "latent", "index", "latent", "window"]
    whole, windowed = attended(ctx)
    assert (whole.attention.num_heads, whole.attention.latent_dim, whole.top_k) == (8, 16, 2048)
    own = windowed.attention
    assert (own.num_heads, own.latent_dim, own.nope_dim, own.rope_dim) == (4, 24, 192, 64)
    assert windowed.top_k == 5


def test_sizes_that_transformers_writes(build_family):
    types = ["full_attention", "full_attention", "sliding_attention"]
    ctx = build_family("Dots3Note", **SMALL, per_layer_config=PER_LAYER, layer_types=types)
    [windowed] = attended(ctx)
    own = windowed.attention
    assert (own.num_heads, own.nope_dim, own.rope_dim) == (2, 8, 16)


def test_a_window_of_the_whole_text_is_none(build_family):
    ctx = build_family("Dots3Note", **{**SMALL, "sliding_window_size": 16})
    assert ctx.cache_layers[-1].cache_spec.kind == "latent"
    assert len(attended(ctx)) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types.*each of 3"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types.*knows only"),
        ({"moe_layer_freq": [1, 1, 1], "first_k_dense_replace": "x"}, "first_k_dense_replace"),
        ({"swa_head_dim": "x"}, "head_dim"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ({"index_head_dim": 4}, "index_head_dim is 4.*rotates 8"),
        ({"per_layer_config": 5}, "per_layer_config.*object"),
        ({"swa_v_head_dim": 0}, "v_head_dim"),
        ({"swa_qk_nope_head_dim": "x"}, "qk_nope_head_dim"),
        ({"rope_parameters": ROPES}, "rope_parameters.*object for layers of type sliding"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Dots3Note", **{**SMALL, **values})
