"""Jamba: which layers attend and which have experts, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError


def test_periods_and_offsets(build_family) -> None:
    values = {"attn_layer_period": 3, "attn_layer_offset": 2, "num_experts": 4}
    ctx = build_family("Jamba", **values, num_hidden_layers=4)
    names = set(ctx.weights.expected)
    attending = {n.split(".")[2] for n in names if ".self_attn." in n}
    sparse = {n.split(".")[2] for n in names if ".experts." in n}
    assert (attending, sparse) == ({"2"}, {"1", "3"})
    assert "model.layers.0.mamba.b_layernorm.weight" in names
    assert {spec.dt_rank for slot, spec in ctx.selector.decisions if slot == "selective_scan"} == {
        8
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attn_layer_offset": 8}, "attn_layer_offset is 8.*below 8"),
        ({"expert_layer_period": 0}, "expert_layer_period"),
        ({"mamba_d_conv": 1}, "mamba_d_conv is 1.*two tokens"),
        ({"mamba_dt_rank": 0}, "mamba_dt_rank"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'.*silu"),
    ],
)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Jamba", **{"num_experts": 4, **values})
