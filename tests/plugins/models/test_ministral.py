"""Ministral 3: how queries grow with their position, and a rotation that files leave out."""

import math

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig
from hotshoe_models.ministral import ROPE
from hotshoe_models.values import with_rope

PLAIN = {"rope_type": "default", "rope_theta": 100.0, "original_max_position_embeddings": 8}


def test_a_rotation_that_is_absent_or_null_is_the_default(build_family):
    for values in ({}, {"rope_parameters": None}):
        build_family("Ministral3", **values)
        config = ModelConfig(None, "Ministral3ForCausalLM", values, "float32", 16, ())
        assert with_rope(config, ROPE).get("rope_parameters") == ROPE


def test_one_that_says_nothing_of_temperature_has_none(build_family):
    build_family("Ministral3", rope_parameters={"rope_type": "default", "rope_theta": 100.0})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_parameters": {**PLAIN, "llama_4_scaling_beta": "a"}}, "scaling_beta is 'a'"),
        ({"rope_parameters": {**PLAIN, "llama_4_scaling_beta": -1.0}}, "scaling_beta is -1"),
        ({"rope_parameters": {**PLAIN, "llama_4_scaling_beta": math.nan}}, "scaling_beta is nan"),
        (
            {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
            "original_max_position_embeddings",
        ),
        ({"rope_parameters": 3}, "rope_parameters is 3"),
        ({"sliding_window": -1}, "sliding_window"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Ministral3", **values)
