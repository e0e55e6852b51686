"""Step 3.5: published lists of layers, limits of experts, and what is refused."""

import math

import pytest

from hotshoe.errors import CheckpointError

VALUES = {
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_intermediate_size": 16,
    "share_expert_dims": 16,
    "num_attention_groups": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_layers_enum": "0,1",
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "sliding_window": 4,
    "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
    "num_nextn_predict_layers": 1,
}


def test_kinds_of_layers_have_heads_and_rotations_of_their_own(build_family) -> None:
    rope = {"rope_theta": [5e6, 1e4, 5e6], "partial_rotary_factors": [0.5, 1.0, 1.0]}
    ctx = build_family("Step3p5", **VALUES, **rope)
    assert [layer.spec.num_heads for layer in ctx.cache_layers] == [8, 6]
    assert [layer.spec.window for layer in ctx.cache_layers] == [None, 4]
    assert ctx.weights.expected["model.layers.1.self_attn.g_proj.weight"].shape == (6, 128)
    rotated = [
        d.spec.rotary_dim for d in ctx.selector.decisions.values() if d.slot == "rotary_and_cache"
    ]
    assert rotated == [8, 16]


def test_a_limit_behind_silu_is_one_of_gates(build_family) -> None:
    ctx = build_family("Step3p5", **VALUES, swiglu_limits=[0, 7.0, 0])
    specs = [d.spec for d in ctx.selector.decisions.values() if d.slot == "moe"]
    assert [spec.limit for spec in specs] == [None, 7.0]
    top = specs[1].gate_limit
    assert math.isclose(top / (1 + math.exp(-top)), 7.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_bias": True}, "attention_bias.*no biases"),
        ({"attention_other_setting": {"head_dim": 32}}, "same head_dim in all layers"),
        ({"attention_other_setting": {"num_attention_groups": 4}}, "same num_attention_groups"),
        ({"attention_other_setting": {"num_attention_heads": 5}}, "2 kv heads to share"),
        ({"moe_layers_enum": "1, x"}, "moe_layers_enum.*numbers of layers"),
        ({"moe_layers_enum": 3}, "moe_layers_enum is 3"),
        ({"swiglu_limits": [7.0]}, "swiglu_limits.*each of 2 layers"),
        ({"swiglu_limits": [-1, 0]}, "swiglu_limits.*at least 0"),
        ({"swiglu_limits_shared": [True, 0]}, "swiglu_limits_shared.*at least 0"),
        ({"swiglu_limits_shared": [0, 7], "moe_layers_enum": "0"}, "layer 1 has none"),
        ({"sliding_window": None}, "sliding_window"),
    ],
)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Step3p5", **{**VALUES, **values})
