"""Mistral Small 4: sizes as transformers has them, bad values named."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError

ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
HALF = {**ROPE, "partial_rotary_factor": 0.5}


def test_parameters_are_theirs(build_family):
    values = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "n_routed_experts": 8}
    with torch.device("meta"):
        config = transformers.Mistral4Config(**values)
        theirs = transformers.Mistral4ForCausalLM(config)
    ours = build_family("Mistral4", sized=False, **values)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    assert counted == sum(p.numel() for p in theirs.parameters())


def test_the_share_that_rotates_may_stand_twice(build_family):
    for rope in (ROPE, HALF):
        build_family("Mistral4", n_routed_experts=8, rope_parameters=rope)
        build_family("Mistral4", n_routed_experts=8, rope_scaling=rope)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}},
            "partial_rotary_factor is 0.25.*64 of 128",
        ),
        ({"n_group": 2, "topk_group": 3}, "topk_group is 3.*2 groups"),
        ({"n_group": 8, "topk_group": 1}, "n_group is 8.*two best"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        ({"routed_scaling_factor": 0}, "routed_scaling_factor"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Mistral4", **{"n_routed_experts": 8, **values})
