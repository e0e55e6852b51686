"""Hy3: sizes as transformers has them, layers for drafts, bad values named."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError

SMALL = {"num_experts": 4, "num_experts_per_tok": 2}


def test_parameters_are_theirs(build_family):
    values = {"num_hidden_layers": 2, "num_experts": 8}
    with torch.device("meta"):
        theirs = transformers.HYV3ForCausalLM(transformers.HYV3Config(**values))
    ours = build_family("HYV3", sized=False, **values)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    assert counted == sum(p.numel() for p in theirs.parameters()) + 8  # what moves the choice


def test_layers_for_drafts_are_not_read(build_family):
    weights = build_family("HYV3", **SMALL, num_nextn_predict_layers=1).weights
    assert not weights.wants("model.layers.2.eh_proj.weight")
    with pytest.raises(CheckpointError, match=r"model\.layers\.3"):
        weights.wants("model.layers.3.eh_proj.weight")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types.*each of 2"),
        ({"mlp_layer_types": ["dense", ["sparse"]]}, "mlp_layer_types"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5"),
        ({"num_shared_experts": -1}, "num_shared_experts is -1"),
        ({"router_scaling_factor": 0}, "router_scaling_factor is 0"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("HYV3", **{**SMALL, **values})
