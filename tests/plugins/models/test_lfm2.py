"""LFM2: which layers convolve, the rounded size of MLPs, experts behind dense layers."""

import pytest

from hotshoe.errors import CheckpointError

COUNT = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def slots(ctx):
    return [slot for slot, _ in ctx.selector.decisions]


def sizes(ctx):
    return {w.shape[0] for name, w in ctx.weights.expected.items() if name.endswith(".w1.weight")}


def test_layers_are_those_that_the_file_names(build_family) -> None:
    older = build_family("Lfm2", full_attn_idxs=[1])
    newer = build_family("Lfm2", layer_types=["conv", "full_attention"])
    for ctx in (older, newer):
        assert slots(ctx).count("short_conv") == slots(ctx).count("attention") == 1
    assert "short_conv" not in slots(build_family("Lfm2"))


def test_mlps_are_rounded_where_the_file_asks_for_it(build_family) -> None:
    assert sizes(build_family("Lfm2", block_ff_dim=600)) == {512}
    assert sizes(build_family("Lfm2", block_multiple_of=24, block_ffn_dim_multiplier=1.5)) == {72}
    assert sizes(build_family("Lfm2", block_auto_adjust_ff_dim=False)) == {64}


def test_dense_layers_come_first(build_family) -> None:
    ctx = build_family("Lfm2Moe", num_dense_layers=1, layer_types=["conv"] * 2, **COUNT)
    assert slots(ctx).count("moe") == 1
    biases = [name for name in ctx.weights.expected if name.endswith("expert_bias")]
    assert biases == ["model.layers.1.feed_forward.expert_bias"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layer_types": ["conv", "mamba"]}, "layer_types.*knows only full_attention and conv"),
        ({"layer_types": ["conv"]}, "layer_types.*each of 2 layers"),
        ({"conv_L_cache": 1}, "conv_L_cache is 1.*two tokens"),
        ({"full_attn_idxs": 3}, "full_attn_idxs is 3.*list"),
        ({"conv_bias": 1}, "conv_bias is 1.*true or false"),
    ],
)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Lfm2", **values)
