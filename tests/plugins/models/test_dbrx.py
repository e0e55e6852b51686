"""DBRX: keys of its own, and values that it does not know."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 16}


def test_keys_are_read_where_the_file_has_them(build_family):
    values = {"attn_config": {"kv_n_heads": 2, "rope_theta": 50.0, "clip_qkv": 8}}
    ctx = build_family("Dbrx", sized=False, **SMALL, **values, ffn_config={"ffn_hidden_size": 24})
    [layer, _] = ctx.cache_layers
    assert (layer.spec.num_kv_heads, layer.spec.head_dim) == (2, 16)
    shapes = {name: found.shape for name, found in ctx.weights.expected.items()}
    assert shapes["transformer.blocks.1.ffn.experts.mlp.3.w2.weight"] == (64, 24)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ffn_config": {"moe_normalize_expert_weights": 2}}, "moe_normalize_expert_weights is 2"),
        ({"ffn_config": {"ffn_act_fn": {"name": "tanh"}}}, "hidden_act.*knows only"),
        ({"attn_config": {"clip_qkv": -1}}, "clip_qkv.*positive"),
        ({"attn_config": 5}, "attn_config.*object"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Dbrx", sized=False, **{**SMALL, **values})
