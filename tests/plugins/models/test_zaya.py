"""Zaya: caches of both kinds in each layer, older spellings, and values that cannot be."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 3}


def test_each_layer_has_a_state_and_keys_and_values(build_family):
    types = ["hybrid", "hybrid_sliding"]
    ctx = build_family("Zaya", **SMALL, layer_types=types, sliding_window=6)
    kinds = [layer.cache_spec.kind for layer in ctx.cache_layers]
    assert kinds == ["state", "full", "state", "window"]
    # Two copies of 96 channels, and half of the values, of which the last two tokens are kept.
    assert ctx.cache_layers[0].cache_spec.parts[0].shape == (2, 2 * 96 + 16)
    names = ctx.weights.expected
    assert names["model.layers.1.mlp.gate.balancing_biases"].shape == (4,)
    assert "model.layers.0.mlp.gate.router_states_scale" not in names
    assert "model.layers.1.mlp.gate.router_states_scale" in names


def test_a_type_beside_the_kinds_of_rotations_is_overlooked(build_family):
    kinds = {"hybrid": {"rope_theta": 100.0, "partial_rotary_factor": 0.25}}
    build_family("Zaya", **SMALL, rope_parameters={**kinds, "rope_type": "default"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok.*one expert for a token"),
        ({"layer_types": ["hybrid", "full_attention"]}, "layer_types.*hybrid_sliding"),
        ({"layer_types": ["hybrid", "hybrid_sliding"]}, "sliding_window"),
        ({"rope_parameters": {"hybrid_sliding": {}}}, "rope_parameters"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"cca_time0": 0}, "cca_time0"),
        ({"cca_time1": "2"}, "cca_time1"),
        ({"router_hidden_size": 0}, "router_hidden_size"),
        ({"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 5}, "head_dim.*half"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Zaya", **{**SMALL, **values})
