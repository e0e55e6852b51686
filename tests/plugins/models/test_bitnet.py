"""BitNet: norms within blocks, bad values named."""

import pytest

from hotshoe.errors import CheckpointError


def test_norms_within_blocks(build_family):
    ctx = build_family("BitNet", num_key_value_heads=4)
    shapes = {name: found.shape for name, found in ctx.weights.expected.items()}
    assert shapes["model.layers.0.self_attn.attn_sub_norm.weight"] == (128,)
    assert shapes["model.layers.1.mlp.ffn_sub_norm.weight"] == (64,)


def test_other_activations_are_refused(build_family):
    with pytest.raises(CheckpointError, match=r"hidden_act is 'gelu'.*relu2, silu"):
        build_family("BitNet", hidden_act="gelu")
