"""MPT: both spellings of its class, slopes, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.slots import Alibi
from hotshoe_models.plugin import ARCHITECTURES

SMALL = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 64}


def test_attention_is_as_its_own_part_of_the_file_says(build_family) -> None:
    values = {"attn_config": {"softmax_scale": 0.5, "alibi_bias_max": 4, "clip_qkv": 2.0}}
    [layer, _] = build_family("Mpt", sized=False, **SMALL, **values).cache_layers
    assert (layer.spec.scale, layer.spec.alibi) == (0.5, Alibi(4, max_bias=4.0))
    assert ARCHITECTURES["MPTForCausalLM"] == ARCHITECTURES["MptForCausalLM"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_heads": 7}, "n_heads is 7.*d_model of 64"),
        ({"no_bias": False}, "no_bias is False.*True alone"),
        ({"logit_scale": "inv_sqrt_d_model"}, "logit_scale"),
        ({"norm_type": "rmsnorm"}, "norm_type is 'rmsnorm'.*or low_precision_layernorm"),
        ({"norm_type": ["layernorm"]}, "norm_type"),
        ({"attn_config": {"alibi": False}}, "alibi is False"),
        ({"attn_config": {"qk_ln": True}}, "qk_ln is True"),
        ({"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type"),
        ({"attn_config": [8]}, "attn_config.*object"),
        ({"attn_config": {"clip_qkv": -1}}, "clip_qkv is -1"),
    ],
)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Mpt", sized=False, **{**SMALL, **values})
