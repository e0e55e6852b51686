"""Muse Spark: which layers have experts, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_hidden_size": 24,
    "moe_intermediate_size": 16,
}


@pytest.fixture
def build_text(build_family, monkeypatch):
    """Build the text part from bare values."""
    from tests.plugins.models import conftest

    monkeypatch.setitem(conftest.ARCHITECTURE, "MuseSpark", "MuseSparkTextModel")
    return lambda **values: build_family("MuseSpark", **{**SMALL, **values})


def test_layers_have_experts_unless_the_file_says_otherwise(build_text) -> None:
    router = "model.layers.{}.mlp.gate.weight"
    names = build_text().weights.expected
    assert all(router.format(i) in names for i in range(2))
    names = build_text(mlp_layer_types=["dense", "sparse"]).weights.expected
    assert router.format(0) not in names and "model.layers.0.mlp.down_proj.weight" in names
    assert names["model.layers.1.mlp.pre_expert_proj.weight"].shape == (24, 128)


def test_layers_rotate_by_the_base_of_the_family(build_text) -> None:
    ctx = build_text(num_hidden_layers=5)
    assert [layer.spec.window for layer in ctx.cache_layers] == [None, 2048, 2048, 2048, None]
    rotated = {spec.rotary_dim for slot, spec in ctx.selector.decisions if "rotary" in slot}
    assert rotated == {0, 16}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_bias": True}, "attention_bias.*no biases"),
        ({"mlp_layer_types": ["sparse"]}, "mlp_layer_types.*each of 2 layers"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok.*4 experts"),
        ({"moe_hidden_size": 0}, "moe_hidden_size"),
        ({"residual_gate_temperature": 0}, "residual_gate_temperature.*positive"),
        ({"post_norm_eps": None}, "post_norm_eps"),
        ({"layer_rope_theta": [1.0]}, "layer_rope_theta.*each of 2 layers"),
    ],
)
def test_bad_values_are_named(build_text, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_text(**values)
