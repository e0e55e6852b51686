"""Ernie 4.5: which layers have experts, and what else is read."""

import pytest

from hotshoe.errors import CheckpointError

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


def test_experts_of_images_are_not_read(build_family):
    ctx = build_family("Ernie4_5_VLMoe", **{**VALUES, "moe_intermediate_size": [16, 8]})
    assert sparse(ctx) == [1, 2, 3]
    known = ctx.weights.wants
    assert known("model.layers.1.mlp.experts.3.up_proj.weight")
    assert not known("model.layers.1.mlp.experts.4.up_proj.weight")
    assert not known("model.layers.1.mlp.experts.7.up_proj.weight")
    assert not known("model.layers.1.mlp.gate.weight_1")
    with pytest.raises(CheckpointError, match=r"lacks|holds model\.layers\.1\.mlp\.experts\.8"):
        known("model.layers.1.mlp.experts.8.up_proj.weight")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"moe_intermediate_size": 16}, "moe_intermediate_size is 16.*two sizes"),
        ({"mlp_layer_types": ["sparse"]}, "mlp_layer_types"),
        ({"moe_num_experts": [4, 4]}, "moe_num_experts"),
    ],
    ids=str,
)
def test_bad_values_of_a_model_that_sees_are_named(build_family, values, message):
    given = {**VALUES, "moe_intermediate_size": [16, 8], **values}
    with pytest.raises(CheckpointError, match=message):
        build_family("Ernie4_5_VLMoe", **given)
