"""Specifications of whole layers: what they name as features, and steps made of them."""

import pytest

from hotshoe.slots import SLOTS, Alibi, ModelStepSpec
from hotshoe.slots.layer_specs import layer_features, step_features
from hotshoe_conformance.cases.decoder_layer import layer
from hotshoe_conformance.cases.quant import OPERANDS


@pytest.mark.parametrize(
    ("changes", "features"),
    [
        ({}, set()),
        ({"window": 7, "sinks": True}, {"window", "sinks"}),
        ({"bias": True, "ranks": 2}, {"bias", "ranks"}),
        ({"rotary_dim": 0}, {"partial_rotation"}),
        ({"kind": "gelu", "qk_norm_eps": 1e-6}, {"activation_gelu", "qk_norm"}),
        (OPERANDS[0], {"weight_int8", "x_int8"}),
        ({"kv_dtype": "int8", "kv_scales": "token"}, {"kv_int8"}),
        ({"v_head_dim": 8, "softcap": 3.0}, {"narrow_values", "softcap"}),
        ({"alibi": Alibi(4)}, {"alibi"}),
    ],
)
def test_features(changes, features) -> None:
    assert layer_features(layer(**changes)) == features


def test_a_step_has_what_its_layers_have() -> None:
    alike = ModelStepSpec(((layer(window=7), 3),))
    assert step_features(alike) == {"window"}
    assert alike.each() == [layer(window=7)] * 3
    mixed = ModelStepSpec(((layer(window=7), 1), (layer(bias=True), 2)))
    assert step_features(mixed) == {"window", "bias", "kinds"}
    assert len(SLOTS["model_step"].matrices(mixed)) == 12
    one = SLOTS["decoder_layer"].step_bytes
    assert SLOTS["model_step"].step_bytes(mixed, 50) == (
        one(layer(window=7), 50) + 2 * one(layer(bias=True), 50)
    )
