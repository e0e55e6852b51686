"""ModernBERT's decoder: windows and rotary bases of types of layers, bad values named."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {"num_hidden_layers": 4, "local_attention": 8}


def test_two_of_three_layers_have_half_a_window(build_family):
    ctx = build_family("ModernBertDecoder", **SMALL)
    windows = [layer.cache_spec.window for layer in ctx.cache_layers]
    assert windows == [None, 4, 4, None]
    names = set(ctx.weights.expected)
    assert "model.layers.0.attn_norm.weight" not in names
    assert {"model.layers.1.attn_norm.weight", "lm_head.dense.weight"} <= names
    known = ctx.weights.known_as("decoder.bias")
    assert known == "model.embeddings.tok_embeddings.bias"
    assert known in names


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"classifier_activation": "silu"}, "classifier_activation is 'silu'.*gelu"),
        ({"local_attention": None}, "local_attention"),
        ({"rope_parameters": {"full_attention": 5}}, "rope_parameters.*object for layers"),
        ({"layer_types": ["full_attention"]}, "layer_types.*each of 4"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("ModernBertDecoder", **{**SMALL, **values})
