"""OPT: its positions, and what is refused."""

import random

import pytest
import torch

from hotshoe.errors import CheckpointError, ConfigError


def test_no_sequence_is_longer_than_there_are_positions(build_family) -> None:
    build_family("OPT", max_model_len=20, max_position_embeddings=20)
    with pytest.raises(ConfigError, match=r"max_model_len 21 exceeds the 20 positions.*--max"):
        build_family("OPT", max_model_len=21, max_position_embeddings=20)


def test_positions_count_from_each_sequence_s_own_start(
    variants, checkpoints, stepper_class
) -> None:
    """Two texts of one step, one of which goes on: the vectors go by position, not by row."""
    checkpoint = checkpoints.get(variants["opt"])
    stepper = stepper_class(checkpoint.path, 64)
    text = [random.randrange(256) for _ in range(9)]
    stepper.step({0: text[:6]})
    found = stepper.step({1: text[:4], 0: text[6:]})
    expected = checkpoint.logits(text)
    torch.testing.assert_close(
        found[0], expected[6:], rtol=0, atol=1e-4 * expected.abs().max().item()
    )
    torch.testing.assert_close(
        found[1], expected[:4], rtol=0, atol=1e-4 * expected.abs().max().item()
    )


BAD = [
    ({"do_layer_norm_before": False}, "do_layer_norm_before.*true alone"),
    ({"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine"),
    ({"word_embed_proj_dim": 64}, "word_embed_proj_dim is 64.*128 numbers"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("OPT", **values)
