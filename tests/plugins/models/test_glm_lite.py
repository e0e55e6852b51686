"""GLM-4.7 Flash: which layers have experts."""

import pytest

from hotshoe.errors import CheckpointError

SIZES = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}


def sparse(ctx):
    names = ctx.weights.expected
    return [i for i in range(3) if f"model.layers.{i}.mlp.gate.weight" in names]


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        ({}, [1, 2]),
        ({"first_k_dense_replace": 2}, [2]),
        ({"mlp_layer_types": ["sparse", "dense", "sparse"]}, [0, 2]),
        ({"mlp_layer_types": ["dense"] * 3}, []),
    ],
    ids=str,
)
def test_layers_with_experts(build_family, values, layers):
    assert sparse(build_family("Glm4MoeLite", **SIZES, **values)) == layers


@pytest.mark.parametrize("types", [["dense"], ["dense", "sparse", "other"], "dense"], ids=str)
def test_a_list_that_says_something_else_is_refused(build_family, types):
    with pytest.raises(CheckpointError, match=r"mlp_layer_types is .*each of 3 layers"):
        build_family("Glm4MoeLite", **SIZES, mlp_layer_types=types)


def test_layers_for_drafts_are_not_read(build_family):
    table = build_family("Glm4MoeLite", **SIZES, num_nextn_predict_layers=1).weights
    assert not table.wants("model.layers.3.eh_proj.weight")
    assert table.notice() == {"unused weights": "1 tensors of layers that predict further tokens"}
