"""GPT-2: its positions, older checkpoints, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.models import ModelConfig


def test_no_sequence_is_longer_than_there_are_positions(build_family) -> None:
    build_family("GPT2", max_model_len=20, n_positions=20)
    with pytest.raises(ConfigError, match=r"max_model_len 21 exceeds the 20 positions.*--max"):
        build_family("GPT2", max_model_len=21, n_positions=20)


def test_the_length_is_that_of_the_positions(variants, checkpoints) -> None:
    assert ModelConfig.load(checkpoints.get(variants["gpt2"]).path).max_model_len == 64


def test_masks_of_older_checkpoints_are_passed_over(build_family) -> None:
    weights = build_family("GPT2").weights
    assert not weights.wants("transformer.h.0.attn.bias")
    assert weights.wants("transformer.h.0.attn.c_attn.bias")


BAD = [
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ({"add_cross_attention": True}, "add_cross_attention"),
    ({"n_embd": 0}, "n_embd.*0"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("GPT2", **values)
