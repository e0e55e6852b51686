"""Apertus: its size, its activation, and what is refused."""

import math

import pytest

from hotshoe.errors import CheckpointError

#: Parameters of Apertus 8B.
PUBLISHED = 8_053_338_176
BAD = [
    ({"hidden_act": "tanh"}, "hidden_act is 'tanh'.*xielu"),
    ({"attention_bias": 1}, "attention_bias is 1.*true or false"),
]


def test_published_parameters(build_family) -> None:
    sizes = {"intermediate_size": 21504, "num_key_value_heads": 8}
    weights = build_family("Apertus", sized=False, **sizes).weights.expected
    constants = ("act_fn.beta", "act_fn.eps")
    found = [math.prod(w.shape) for name, w in weights.items() if not name.endswith(constants)]
    assert sum(found) == PUBLISHED


def test_other_activations_have_no_weights(build_family) -> None:
    names = build_family("Apertus", hidden_act="relu2").weights.expected
    assert not any("act_fn" in name for name in names)


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Apertus", **values)


def test_an_output_matrix_of_fewer_tokens(build_family) -> None:
    ctx = build_family("Apertus1p5", vocab_size=96, output_vocab_size=64)
    shapes = {name: found.shape for name, found in ctx.weights.expected.items()}
    assert shapes["model.embed_tokens.weight"] == (96, 128)
    assert shapes["lm_head.weight"] == (64, 128)
    assert not ctx.weights.wants("model.vision_tokenizer.encoder.weight")
    with pytest.raises(CheckpointError, match=r"output_vocab_size is 65.*vocab_size of 64"):
        build_family("Apertus1p5", vocab_size=64, output_vocab_size=65)
    with pytest.raises(CheckpointError, match="tie_word_embeddings"):
        build_family("Apertus1p5", output_vocab_size=32, tie_word_embeddings=True)
