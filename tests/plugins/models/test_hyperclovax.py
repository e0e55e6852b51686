"""HyperCLOVA X: norms behind blocks where the file says so, and its factors."""

import pytest

from hotshoe.errors import CheckpointError


@pytest.mark.parametrize("behind", [True, False])
def test_norms_behind_blocks(build_family, behind) -> None:
    names = build_family("HyperCLOVAX", use_post_norm=behind).weights.expected
    assert any(".post_norm2." in name for name in names) is behind


def test_scores_have_the_usual_factor_where_nobody_says_it(build_family) -> None:
    ctx = build_family("HyperCLOVAX", head_dim=16)
    assert {layer.spec.scale for layer in ctx.cache_layers} == {0.25}


def test_a_factor_of_nothing_is_named(build_family) -> None:
    with pytest.raises(CheckpointError, match="logits_scaling is 0"):
        build_family("HyperCLOVAX", logits_scaling=0)
