"""Mamba 1: sizes that follow from others, and norms of Falcon-Mamba."""

import pytest

from hotshoe.errors import CheckpointError


def scans(ctx):
    return [spec for slot, spec in ctx.selector.decisions if slot == "selective_scan"]


def test_the_rank_is_a_sixteenth_where_nobody_says_it(build_family) -> None:
    assert scans(build_family("Mamba", hidden_size=136))[0].dt_rank == 9
    assert scans(build_family("Mamba", time_step_rank=3))[0].dt_rank == 3


def test_files_may_say_how_many_channels_there_are(build_family) -> None:
    ctx = build_family("FalconMamba", expand=16, intermediate_size=256)
    assert scans(ctx)[0].inner_size == 256


def test_falcon_norms_what_the_scan_takes_without_weights(build_family) -> None:
    ctx = build_family("FalconMamba", mixer_rms_eps=1e-4)
    assert scans(ctx)[0].norm_eps == 1e-4 and scans(build_family("Mamba"))[0].norm_eps is None
    assert not any("layernorm" in name for name in ctx.weights.expected)


def test_both_spellings_of_the_table(build_family) -> None:
    weights = build_family("Mamba").weights
    assert weights.known_as("backbone.embedding.weight") in weights.expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"conv_kernel": 1}, "conv_kernel is 1.*two tokens"),
        ({"time_step_rank": -1}, "time_step_rank"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ],
)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Mamba", **values)
