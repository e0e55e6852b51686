"""OLMo Hybrid: sizes that files leave out, and which norms a layer has."""

import pytest

from hotshoe.errors import CheckpointError


def test_sizes_follow_from_heads(build_family):
    ctx = build_family("OlmoHybrid", hidden_size=96, num_attention_heads=4, num_key_value_heads=4)
    shapes = {name: expected.shape for name, expected in ctx.weights.expected.items()}
    prefix = "model.layers.0.linear_attn."
    assert shapes[f"{prefix}q_conv1d.weight"] == (4 * 18, 1, 4)
    assert shapes[f"{prefix}v_conv1d.weight"] == (4 * 36, 1, 4)


def test_the_last_of_few_layers_attends_and_is_normed_behind(build_family):
    names = set(build_family("OlmoHybrid").weights.expected)
    assert "model.layers.0.input_layernorm.weight" in names
    assert "model.layers.1.self_attn.q_norm.weight" in names
    assert "model.layers.1.input_layernorm.weight" not in names
    assert "model.layers.1.post_feedforward_layernorm.weight" in names


def test_other_layers_are_refused(build_family):
    with pytest.raises(CheckpointError, match="layer_types"):
        build_family("OlmoHybrid", layer_types=["linear_attention", "sliding_attention"])
    with pytest.raises(CheckpointError, match="linear_allow_neg_eigval"):
        build_family("OlmoHybrid", linear_allow_neg_eigval="yes")
