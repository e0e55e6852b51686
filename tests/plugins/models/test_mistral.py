"""Mistral: the window of every layer, absent and null."""

import math

import pytest

from hotshoe.errors import CheckpointError


def parameters(ctx):
    return sum(math.prod(weight.shape) for weight in ctx.weights.expected.values())


def windows(ctx):
    return [layer.spec.window for layer in ctx.cache_layers]


def test_published_parameters(build_family):
    assert parameters(build_family("Mistral", sized=False)) == 7_241_732_096


def test_an_absent_window_is_the_default_and_null_is_none(build_family):
    assert windows(build_family("Mistral")) == [4096, 4096]
    assert windows(build_family("Mistral", sliding_window=12)) == [12, 12]
    assert windows(build_family("Mistral", sliding_window=None)) == [None, None]


def test_layer_types_are_followed(build_family):
    types = ["full_attention", "sliding_attention"]
    assert windows(build_family("Mistral", layer_types=types)) == [None, 4096]


def test_a_window_is_a_positive_integer(build_family):
    with pytest.raises(CheckpointError, match=r"sliding_window.*0"):
        build_family("Mistral", sliding_window=0)
