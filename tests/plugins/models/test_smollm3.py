"""SmolLM 3: which layers rotate, and which have a window."""

import math

import pytest

from hotshoe.errors import CheckpointError


def parameters(ctx):
    return sum(math.prod(weight.shape) for weight in ctx.weights.expected.values())


def windows(ctx):
    return [layer.spec.window for layer in ctx.cache_layers]


def rotated(ctx):
    return [layer._cos_sin is not None for layer in ctx.cache_layers]


def test_published_parameters(build_family):
    assert parameters(build_family("SmolLM3", sized=False)) == 3_075_098_624


def test_every_fourth_layer_does_not_rotate_unless_said_otherwise(build_family):
    assert rotated(build_family("SmolLM3", num_hidden_layers=5)) == [True] * 3 + [False, True]
    assert rotated(build_family("SmolLM3", no_rope_layer_interval=1)) == [False, False]
    assert rotated(build_family("SmolLM3", no_rope_layers=[0, 1, 0, 0])) == [False, True]


def test_layers_without_rotation_have_the_window(build_family):
    on = {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 8}
    assert windows(build_family("SmolLM3", **on)) == [8, None]
    assert windows(build_family("SmolLM3", **on | {"use_sliding_window": False})) == [None, None]


BAD = [
    ({"no_rope_layers": [1]}, "no_rope_layers.*each of 2"),
    ({"no_rope_layers": 4}, "no_rope_layers.*4"),
    ({"no_rope_layer_interval": 0}, "no_rope_layer_interval.*0"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("SmolLM3", **values)
