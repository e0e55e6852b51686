"""Gemma 2 and 3: the order of windows, soft caps, factors, rotary bases."""

import math
from dataclasses import replace

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.types.cache import held_blocks
from hotshoe.types.layout import lay_out

LONG = 32768


def parameters(ctx):
    return sum(math.prod(weight.shape) for weight in ctx.weights.expected.values())


def windows(ctx):
    return [layer.spec.window for layer in ctx.cache_layers]


GEMMA3_1B = {
    "vocab_size": 262144,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
}


def test_published_parameters(build_family):
    assert parameters(build_family("Gemma2", sized=False)) == 2_614_341_888
    assert parameters(build_family("Gemma3", sized=False, **GEMMA3_1B)) == 999_885_952


def test_windows_follow_the_family_rule_or_the_list(build_family):
    assert windows(build_family("Gemma2", num_hidden_layers=3)) == [4096, None, 4096]
    found = windows(build_family("Gemma3", num_hidden_layers=7, sliding_window=512))
    assert found == [512] * 5 + [None, 512]
    found = windows(build_family("Gemma3", num_hidden_layers=4, sliding_window_pattern=2))
    assert found == [4096, None] * 2
    types = ["full_attention", "sliding_attention"]
    assert windows(build_family("Gemma3", layer_types=types)) == [None, 4096]


def softcaps(ctx):
    return {layer.spec.softcap for layer in ctx.cache_layers}


def test_an_absent_soft_cap_is_the_default_and_null_is_none(build_family):
    assert softcaps(build_family("Gemma2")) == {50.0}
    assert softcaps(build_family("Gemma2", attn_logit_softcapping=None)) == {None}
    assert softcaps(build_family("Gemma3")) == {None}


@pytest.mark.parametrize("family", ["Gemma2", "Gemma3"])
def test_the_embedding_factor_is_rounded_to_the_models_type(build_family, family):
    for dtype, factor in (("bfloat16", 55.5), ("float32", pytest.approx(3072**0.5, rel=1e-7))):
        ctx = build_family(family, dtype=dtype, hidden_size=3072)
        (spec,) = [spec for slot, spec in ctx.selector.decisions if slot == "embedding"]
        assert spec.scale == factor


BAD = [
    ("Gemma2", {"hidden_activation": "tanh"}, "hidden_activation.*tanh"),
    ("Gemma2", {"sliding_window": None}, "sliding_window"),
    ("Gemma2", {"final_logit_softcapping": -3.0}, "final_logit_softcapping.*-3"),
    ("Gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("Gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping.*50"),
    ("Gemma3", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters"),
    ("Gemma3", {"rope_parameters": {"full_attention": 4}}, "rope_parameters.*4"),
    ("Gemma3", {"rope_scaling": "linear"}, "rope_scaling.*linear"),
]


@pytest.mark.parametrize(("family", "values", "message"), BAD)
def test_bad_values_are_named(build_family, family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family(family, **values)


def test_windows_save_most_of_the_cache_of_a_long_context(build_family):
    """26 layers, of which every sixth sees all 32,768 tokens, and 512 are seen by the others."""
    values = {"num_hidden_layers": 26, "sliding_window": 512, **GEMMA3_1B}
    ctx = build_family("Gemma3", sized=False, max_model_len=LONG, **values)
    specs = [layer.cache_spec for layer in ctx.cache_layers]
    plain = [replace(spec, kind="full", window=None) for spec in specs]
    assert [spec.kind for spec in specs].count("full") == 4
    for step, most in ((2048, 0.25), (1, 0.18)):  # while it is read, and while it decodes
        sizes = [held_bytes(lay_out(layers, LONG, step), LONG, step) for layers in (specs, plain)]
        assert sizes[0] / sizes[1] < most


def held_bytes(layout, num_tokens, step):
    return sum(
        held_blocks(group.spec, num_tokens, step) * layout.pools[group.pool].block_bytes
        for group in layout.groups
    )
