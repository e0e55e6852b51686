"""Llama: parameters of published models, biases where the file says so."""

import math

import pytest


def parameters(ctx):
    return sum(math.prod(weight.shape) for weight in ctx.weights.expected.values())


PUBLISHED = {
    "Llama-3.2-1B": (
        1_235_814_400,
        {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "tie_word_embeddings": True,
        },
    ),
    "SmolLM2-135M": (
        134_515_008,
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
    ),
    "Llama-2-7b": (6_738_415_616, {}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameters(build_family, name):
    count, values = PUBLISHED[name]
    assert parameters(build_family("Llama", sized=False, **values)) == count


def biases(ctx):
    return {name.split(".")[-2] for name in ctx.weights.expected if name.endswith(".bias")}


def test_biases(build_family):
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    mlp = {"gate_proj", "up_proj", "down_proj"}
    assert biases(build_family("Llama")) == set()
    assert biases(build_family("Llama", attention_bias=True)) == attention
    assert biases(build_family("Llama", mlp_bias=True)) == mlp


def test_heads_default_to_equal_shares(build_family):
    ctx = build_family("Llama", num_key_value_heads=None)
    spec = ctx.cache_layers[0].spec
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (8, 8, 16)
    assert spec.scale == 0.25
