"""GLM-4 and GLM-4-0414: half of each head is rotated, in pairs of neighbors."""

import pytest


@pytest.mark.parametrize("family", ["Glm", "Glm4"])
def test_rotation_and_stacked_gates(build_family, family):
    ctx = build_family(family, head_dim=16)
    [spec] = {spec for slot, spec in ctx.selector.decisions if slot == "rotary_and_cache"}
    assert (spec.rotary_dim, spec.interleaved) == (8, True)
    expected = ctx.weights.expected
    assert expected["model.layers.0.mlp.gate_up_proj.weight"].shape == (128, 128)
    assert "model.layers.0.self_attn.k_proj.bias" in expected
    behind = "model.layers.0.post_self_attn_layernorm.weight" in expected
    assert behind == (family == "Glm4")
