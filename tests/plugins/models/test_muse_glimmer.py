"""Muse Glimmer: which layers rotate, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError


@pytest.fixture
def build_text(build_family, monkeypatch):
    """Build the text part from bare values."""
    from tests.plugins.models import conftest

    monkeypatch.setitem(conftest.ARCHITECTURE, "MuseGlimmer", "MuseGlimmerTextModel")
    return lambda **values: build_family("MuseGlimmer", head_dim=16, **values)


def test_every_fourth_layer_from_the_last_sees_all_and_does_not_rotate(build_text) -> None:
    ctx = build_text(num_hidden_layers=6)
    windows = [layer.spec.window for layer in ctx.cache_layers]
    assert windows == [2048, None, 2048, 2048, 2048, None]
    rotated = {spec.rotary_dim for slot, spec in ctx.selector.decisions if "rotary" in slot}
    assert rotated == {0, 16}
    assert "model.embed_norm.weight" not in ctx.weights.expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_bias": True}, "attention_bias.*no biases"),
        ({"layer_rope_theta": [1.0]}, "layer_rope_theta.*each of 2 layers"),
        ({"layer_rope_theta": 1.0}, "layer_rope_theta.*each of 2 layers"),
        ({"layer_rope_theta": [1.0, 2.0]}, "layer_rope_theta.*one base"),
        ({"output_multiplier": 0}, "output_multiplier.*positive"),
    ],
)
def test_bad_values_are_named(build_text, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_text(**values)
