"""RecurrentGemma: kinds of layers, and values that cannot be."""

import pytest

from hotshoe.errors import CheckpointError


def test_blocks_repeat_and_have_caches_of_their_kinds(build_family):
    ctx = build_family("RecurrentGemma", num_hidden_layers=5, attention_window_size=6)
    assert [layer.cache_spec.kind for layer in ctx.cache_layers] == [
        *("state", "state", "window"),
        *("state", "state"),
    ]
    names = set(ctx.weights.expected)
    assert "model.layers.4.temporal_block.rg_lru.recurrent_param" in names
    assert "model.layers.2.temporal_block.o_proj.bias" in names


def test_one_head_has_one_matrix(build_family):
    ctx = build_family("RecurrentGemma", num_attention_heads=1, num_key_value_heads=1, head_dim=128)
    name = "model.layers.0.temporal_block.rg_lru.input_gate_weight"
    assert ctx.weights.expected[name].shape == (1, 128, 128)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"block_types": ["recurrent", "conv"]}, "block_types.*recurrent, attention"),
        ({"block_types": []}, "block_types"),
        ({"block_types": [["recurrent"]]}, "block_types"),
        ({"lru_width": 66}, "lru_width.*66 channels to divide among 8 heads"),
        ({"conv1d_width": 1}, "conv1d_width.*two tokens or more"),
        ({"intermediate_size": 97}, "intermediate_size"),
        ({"hidden_activation": "silu"}, "hidden_activation.*gelu_pytorch_tanh"),
        ({"attention_window_size": 0}, "attention_window_size"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("RecurrentGemma", **values)
