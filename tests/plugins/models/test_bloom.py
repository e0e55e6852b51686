"""BLOOM: slopes, older keys, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.slots import Alibi


def test_older_files_have_other_keys(build_family) -> None:
    ctx = build_family("Bloom", n_embed=96, num_attention_heads=6, num_hidden_layers=3)
    assert len(ctx.cache_layers) == 3
    assert ctx.weights.expected["transformer.h.2.mlp.dense_h_to_4h.weight"].shape == (384, 96)
    assert {layer.spec.alibi for layer in ctx.cache_layers} == {Alibi(6)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_head": 7}, "n_head is 7.*hidden size of 64"),
        ({"apply_residual_connection_post_layernorm": True}, "not normed"),
        ({"layer_norm_epsilon": 0}, "layer_norm_epsilon is 0"),
    ],
)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Bloom", sized=False, **values)
