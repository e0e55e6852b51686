"""Kolibri 1: names of published files, layers that rotate, bad values named."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
}


def test_names_of_published_files(build_family):
    weights = build_family("Kolibri1", **SMALL).weights
    for published, name in {
        "model.layers.0.moe.router.expert_bias": "model.layers.0.mlp.gate.e_score_correction_bias",
        "model.layers.1.post_attn_norm.weight": "model.layers.1.post_self_attn_layernorm.weight",
        "model.layers.1.post_ffn_norm.weight": "model.layers.1.post_mlp_layernorm.weight",
    }.items():
        assert weights.known_as(published) == name
        assert name in weights.expected


def test_bad_values_are_named(build_family):
    with pytest.raises(CheckpointError, match="sliding_window"):
        build_family("Kolibri1", **{**SMALL, "sliding_window": None})
    with pytest.raises(CheckpointError, match="scoring_func"):
        build_family("Kolibri1", **SMALL, scoring_func="softmax")
    with pytest.raises(CheckpointError, match="num_experts_per_tok"):
        build_family("Kolibri1", **{**SMALL, "num_experts_per_tok": 5})
