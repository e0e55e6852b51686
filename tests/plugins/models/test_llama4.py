"""Llama 4: which layers rotate, have experts, attend in chunks."""

import math

import pytest
import torch
import transformers

from hotshoe.errors import CheckpointError, ConfigError

SMALL = {"num_hidden_layers": 4, "num_local_experts": 2}


def names(ctx, end):
    return [i for i in range(4) if f"model.layers.{i}.{end}" in ctx.weights.expected]


def test_parameters_are_theirs(build_family):
    values = {**SMALL, "interleave_moe_layer_step": 2, "attention_bias": True}
    with torch.device("meta"):
        theirs = transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**values))
    ours = build_family("Llama4", sized=False, **values)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    assert counted == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize(
    ("values", "sparse"),
    [
        ({}, [0, 1, 2, 3]),
        ({"interleave_moe_layer_step": 2}, [1, 3]),
        ({"moe_layers": [2]}, [2]),
        ({"moe_layers": []}, []),
    ],
)
def test_layers_with_experts(build_family, values, sparse):
    ctx = build_family("Llama4", **SMALL, **values)
    assert names(ctx, "feed_forward.router.weight") == sparse


def chunks(ctx):
    return [layer.cache_spec.window for layer in ctx.cache_layers if layer.cache_spec.chunked]


def test_layers_that_rotate_attend_within_chunks(build_family):
    assert chunks(build_family("Llama4", **SMALL, attention_chunk_size=8)) == [8, 8, 8]
    for whole in (
        {"attention_chunk_size": 16},
        {"attention_chunk_size": None},
        {"attention_chunk_size": 8, "layer_types": ["full_attention"] * 4},
        {"attention_chunk_size": 8, "no_rope_layers": [0] * 4},
    ):
        assert not chunks(build_family("Llama4", **SMALL, **whole))
    with pytest.raises(ConfigError, match=r"block_size 4 .* chunks of 14 .*--block-size 2, or"):
        build_family("Llama4", **SMALL, attention_chunk_size=14)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_experts_per_tok": 2}, "num_experts_per_tok is 2.*one expert"),
        ({"no_rope_layers": [1, 0]}, r"no_rope_layers is \[1, 0\].*each of 4"),
        ({"no_rope_layers": [1, 0, 2, 1]}, "no_rope_layers"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types.*knows only"),
        ({"layer_types": ["full_attention"]}, "layer_types.*each of 4"),
        (
            {"layer_types": ["chunked_attention"] * 4, "attention_chunk_size": None},
            "attention_chunk_size is None",
        ),
        ({"moe_layers": "all"}, "moe_layers is 'all'"),
        ({"attn_temperature_tuning": "yes"}, "attn_temperature_tuning is 'yes'"),
        ({"floor_scale": 0}, "floor_scale"),
        ({"attn_scale": 0}, "attn_scale"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            "use_qk_norm is True.*scales neither",
        ),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Llama4", **SMALL, **values)


def test_a_number_may_stand_for_true(build_family):
    build_family("Llama4", **SMALL, attn_temperature_tuning=4)
