"""Laguna: heads of layers, kinds of gates, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError

VALUES = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
GATE = "model.layers.1.self_attn.g_proj.weight"


@pytest.mark.parametrize(
    ("gating", "rows"), [(True, 4), ("per-head", 4), ("per-element", 64), ("per-token", None)]
)
def test_gates_are_of_heads_or_of_channels(build_family, gating, rows) -> None:
    values = {**VALUES, "gating": gating, "num_attention_heads_per_layer": [8, 4]}
    if rows is None:
        with pytest.raises(CheckpointError, match="gating is 'per-token'"):
            build_family("Laguna", **values)
        return
    ctx = build_family("Laguna", **values)
    assert [layer.spec.num_heads for layer in ctx.cache_layers] == [8, 4]
    assert ctx.weights.expected[GATE].shape == (rows, 128)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gating": False}, "gating is False"),
        ({"gating": ["per-head"]}, "gating"),
        ({"attention_bias": True}, "attention_bias.*no biases"),
        ({"num_attention_heads_per_layer": [8]}, "per_layer.*each of 2 layers"),
        ({"num_attention_heads_per_layer": [8, 3]}, "per_layer.*multiple of its 2 kv heads"),
        ({"num_attention_heads_per_layer": 8}, "per_layer is 8"),
        ({"moe_router_logit_softcapping": 30.0}, "softcapping is 30.0.*without it"),
        ({"moe_apply_router_weight_on_input": True}, "on_input is True.*without it"),
    ],
)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Laguna", **{**VALUES, **values})
