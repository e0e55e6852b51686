"""MiniMax Text 01: keys of its first release, and values that it does not know."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {"num_local_experts": 4, "head_dim": 16, "num_hidden_layers": 3}


def test_keys_of_the_first_release(build_family):
    ctx = build_family(
        "MiniMaxText01",
        **SMALL,
        attn_type_list=[0, 0, 1],
        layernorm_linear_attention_alpha=3.5,
        postnorm=True,
        shared_intermediate_size=[0],
        rotary_dim=8,
    )
    assert [layer.cache_spec.kind for layer in ctx.cache_layers] == ["state", "state", "full"]
    [space] = {spec for slot, spec in ctx.selector.decisions if slot == "state_space"}
    assert (space.num_groups, space.conv_width, space.dt_limits) == (8, 2, (1.0, 1.0))
    assert not ctx.weights.wants("model.layers.0.self_attn.slope_rate")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"postnorm": False}, "postnorm is False"),
        ({"shared_intermediate_size": 8}, "shared_intermediate_size is 8"),
        ({"sliding_window": 8}, "sliding_window.*whole text"),
        ({"hidden_act": "gelu"}, "hidden_act.*silu"),
        ({"attn_type_list": [0]}, "layer_types.*each of 3"),
        ({"mlp_beta_factor": None}, "mlp_beta_factor"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("MiniMax", **{**SMALL, **values})
