"""GLM MoE and dots.llm1: dense layers first, shared experts, layers that are not read."""

import pytest

from hotshoe.errors import CheckpointError

GROUPED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def test_layers_that_predict_further_tokens_are_unused_by_name(build_family):
    ctx = build_family("Glm4Moe", **GROUPED, num_nextn_predict_layers=1)
    assert not ctx.weights.wants("model.layers.2.eh_proj.weight")
    with pytest.raises(CheckpointError, match=r"layers\.3\.eh_proj"):
        ctx.weights.wants("model.layers.3.eh_proj.weight")


@pytest.mark.parametrize("family", ["Glm4Moe", "Dots1"])
def test_dense_layers_come_first_and_experts_share_some(build_family, family):
    ctx = build_family(family, **GROUPED, first_k_dense_replace=1, n_shared_experts=3)
    shapes = {name: tuple(w.shape) for name, w in ctx.weights.expected.items()}
    assert "model.layers.0.mlp.gate_proj.weight" in shapes
    assert "model.layers.1.mlp.experts.7.down_proj.weight" in shapes
    assert shapes["model.layers.1.mlp.shared_experts.up_proj.weight"] == (48, 128)
    assert shapes["model.layers.1.mlp.gate.e_score_correction_bias"] == (8,)
