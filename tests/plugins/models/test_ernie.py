"""Ernie 4.5: which layers have experts, and what else is read."""

import pytest

VALUES = {"moe_num_experts": 4, "moe_k": 2, "num_hidden_layers": 4, "moe_intermediate_size": 16}


def sparse(ctx):
    names = ctx.weights.expected
    return [i for i in range(4) if f"model.layers.{i}.mlp.gate.weight" in names]


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        ({}, [1, 2, 3]),
        ({"moe_layer_start_index": 0, "moe_layer_end_index": 2}, [0, 1, 2]),
        ({"moe_layer_interval": 2}, [1, 3]),
    ],
)
def test_layers_with_experts(build_family, values, layers):
    ctx = build_family("Ernie4_5_Moe", **VALUES, **values)
    assert sparse(ctx) == layers
    correction = f"model.layers.{layers[0]}.mlp.moe_statics.e_score_correction_bias"
    assert ctx.weights.expected[correction].shape == (1, 4)
    assert not ctx.weights.wants("model.mtp_block.0.mlp.up_proj.weight")
