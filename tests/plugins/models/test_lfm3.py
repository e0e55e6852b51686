"""LFM3: which layers convolve and which have a window, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError


def slots(ctx):
    return [slot for slot, _ in ctx.selector.decisions]


def test_layers_follow_the_published_pattern(build_family) -> None:
    ctx = build_family("Lfm3", num_hidden_layers=8, sliding_window=9)
    attending = [layer for layer in ctx.cache_layers if hasattr(layer.spec, "window")]
    assert [layer.spec.window for layer in attending] == [None, 9, None]
    assert len(ctx.cache_layers) == 8


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layer_types": ["conv", "mamba"]}, "layer_types.*knows only full_attention, sliding"),
        ({"layer_types": ["conv"]}, "layer_types.*each of 2 layers"),
        ({"attention_bias": True}, "attention_bias.*no biases"),
        ({"use_sandwich_norm": 1}, "use_sandwich_norm.*true or false"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": None}, "sliding_window"),
    ],
)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Lfm3", **values)


def test_all_layers_may_convolve(build_family) -> None:
    ctx = build_family("Lfm3", layer_types=["conv", "conv"])
    assert slots(ctx).count("short_conv") == 1 and "attention" not in slots(ctx)
