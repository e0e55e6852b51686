"""Phi-3: stacked matrices, and its two types of rotation under three names."""

import math

import pytest

from hotshoe.errors import CheckpointError


def parameters(ctx):
    return sum(math.prod(weight.shape) for weight in ctx.weights.expected.values())


def windows(ctx):
    return [layer.spec.window for layer in ctx.cache_layers]


def longrope(kind):
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    return {"rope_scaling": {"type": kind, **factors}}


def test_published_parameters(build_family):
    assert parameters(build_family("Phi3", sized=False)) == 3_821_079_552


def test_matrices_are_stacked_in_the_checkpoint(build_family):
    expected = build_family("Phi3", num_key_value_heads=2).weights.expected
    assert expected["model.layers.0.self_attn.qkv_proj.weight"].shape == (192, 128)
    assert expected["model.layers.0.mlp.gate_up_proj.weight"].shape == (128, 128)


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_all_spellings_of_longrope(build_family, kind):
    assert build_family("Phi3", **longrope(kind)).cache_layers


def test_windows(build_family):
    assert windows(build_family("Phi3")) == [None, None]
    assert windows(build_family("Phi3", sliding_window=2047)) == [2047, 2047]


def test_partial_rotation(build_family):
    ctx = build_family("Phi3", partial_rotary_factor=0.75)
    (spec,) = [spec for slot, spec in ctx.selector.decisions if slot == "rotary_and_cache"]
    assert (spec.rotary_dim, spec.head_dim) == (12, 16)


BAD = [
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.*linear"),
    ({"rope_scaling": {"type": "su"}}, "short_factor.*not None"),
    ({"rope_scaling": {"type": "su", "short_factor": [1.0]}}, "short_factor.*not 1 entries"),
    ({"rope_parameters": 3}, "rope_parameters.*3"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Phi3", **values)


def test_what_sees_and_hears_is_not_read(build_family):
    ctx = build_family("Phi4MM", num_key_value_heads=4)
    known = ctx.weights.known_as("model.layers.0.mlp.down_proj.base_layer.weight")
    assert ctx.weights.wants(known)
    for name in ("layers.0.mlp.down_proj.lora_A.vision", "embed_tokens_extend.audio_embed.encoder"):
        assert not ctx.weights.wants(f"model.{name}.weight")
