"""Configurations that cannot be served are refused by the name of their key, before any weight."""

import pytest

from hotshoe.errors import CheckpointError

BAD = [
    ({"hidden_act": "relu2"}, "hidden_act.*relu2"),
    ({"hidden_act": ["silu"]}, "hidden_act.*silu"),
    ({"hidden_size": 0}, "hidden_size.*0"),
    ({"hidden_size": None}, "hidden_size"),
    ({"num_hidden_layers": 2.5}, "num_hidden_layers.*2.5"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps.*small"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps.*nan"),
    ({"attention_bias": "yes"}, "attention_bias.*yes"),
    ({"num_key_value_heads": 5}, "num_key_value_heads.*5"),
    (
        {"num_attention_heads": 9999, "head_dim": None},
        "num_attention_heads is 9999.*hidden size of",
    ),
    ({"rope_scaling": {"type": "spiral"}}, "rope_type.*spiral"),
    ({"rope_scaling": {"type": "linear"}}, "factor"),
    ({"rope_scaling": [2.0]}, r"rope_parameters.*\[2.0\]"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor.*0.5"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Llama", **values)


@pytest.mark.parametrize("name", ["silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh"])
def test_activations(build_family, name):
    ctx = build_family("Llama", hidden_act=name)
    (spec,) = [spec for slot, spec in ctx.selector.decisions if slot == "gated_activation"]
    assert spec.activation == {"swish": "silu", "gelu_new": "gelu_tanh"}.get(
        name, name.replace("pytorch_", "")
    )


def test_null_is_a_value_and_absence_is_the_default(build_family):
    assert build_family("Llama", head_dim=None).cache_layers[0].spec.head_dim == 16
    assert build_family("Qwen3").cache_layers[0].spec.head_dim == 128
