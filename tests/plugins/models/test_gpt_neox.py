"""GPT-NeoX: older keys and older checkpoints."""

import pytest

from hotshoe.errors import CheckpointError


def test_older_keys_say_how_q_and_k_are_rotated(build_family) -> None:
    ctx = build_family("GPTNeoX", rotary_pct=0.5)
    (spec,) = [spec for slot, spec in ctx.selector.decisions if slot == "rotary_and_cache"]
    assert (spec.rotary_dim, spec.head_dim) == (8, 16)


def test_masks_of_older_checkpoints_are_passed_over(build_family) -> None:
    weights = build_family("GPTNeoX").weights
    assert not weights.wants("gpt_neox.layers.0.attention.masked_bias")
    assert weights.wants("gpt_neox.layers.0.attention.dense.bias")


def test_a_japanese_model_has_one_bias_behind_attention(build_family) -> None:
    weights = build_family("GPTNeoXJapanese").weights
    names = [name for name in weights.expected if name.endswith("attention.dense.bias")]
    assert names == ["gpt_neox_japanese.layers.1.attention.dense.bias"]
    published = "gpt_neox_japanese.layers.1.attention.dense_bias"
    assert weights.known_as(published) == names[0]
    with pytest.raises(CheckpointError, match="intermediate_multiple_size"):
        build_family("GPTNeoXJapanese", intermediate_multiple_size=0)
