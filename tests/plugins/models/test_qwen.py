"""Qwen 2 and 3: biases, norms of q and k, windows from a layer on."""

import math

import pytest

from hotshoe.errors import CheckpointError


def parameters(ctx):
    return sum(math.prod(weight.shape) for weight in ctx.weights.expected.values())


def windows(ctx):
    return [layer.spec.window for layer in ctx.cache_layers]


PUBLISHED = {
    "Qwen2": (
        494_032_768,
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3": (
        596_049_920,
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
    ),
}
ON = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_parameters(build_family, family):
    count, values = PUBLISHED[family]
    assert parameters(build_family(family, sized=False, **values)) == count


@pytest.mark.parametrize("family", PUBLISHED)
def test_windows_begin_at_a_layer_if_at_all(build_family, family):
    assert windows(build_family(family, **ON)) == [None, 9]
    assert windows(build_family(family, **ON | {"max_window_layers": 0})) == [9, 9]
    assert windows(build_family(family, **ON | {"use_sliding_window": False})) == [None, None]
    assert windows(build_family(family, **ON | {"sliding_window": None})) == [None, None]
    types = ["sliding_attention", "full_attention"]
    assert windows(build_family(family, **ON, layer_types=types)) == [9, None]


def test_only_qwen2_has_biases_unasked_and_only_qwen3_norms(build_family):
    qwen2 = set(build_family("Qwen2").weights.expected)
    qwen3 = set(build_family("Qwen3").weights.expected)
    layer = "model.layers.1.self_attn."
    assert {f"{layer}{n}_proj.bias" for n in "qkv"} <= qwen2
    assert f"{layer}o_proj.bias" not in qwen2
    assert not any("bias" in name for name in qwen3)
    assert qwen3 > {f"{layer}{n}_norm.weight" for n in "qk"}
    assert not any("_norm.weight" in name for name in qwen2)


BAD = [
    ({"layer_types": ["full_attention"]}, "layer_types.*each of 2"),
    ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types.*chunked"),
    ({"layer_types": [{}, {}]}, "layer_types"),
    ({"layer_types": ["sliding_attention"] * 2}, "sliding_window"),
    ({**ON, "max_window_layers": -1}, "max_window_layers.*-1"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Qwen2", **values)


def test_mimo_is_qwen2_with_layers_that_are_not_read(build_family):
    ctx = build_family("MiMo")
    assert ctx.weights.expected.keys() == build_family("Qwen2").weights.expected.keys()
    assert not ctx.weights.wants("model.mtp_layers.0.input_proj.weight")
    assert "layers that predict further tokens" in ctx.weights.notice()["unused weights"]
