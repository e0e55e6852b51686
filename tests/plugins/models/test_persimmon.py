"""Persimmon: norms of heads, as the file says."""

import pytest

NORM = "model.layers.0.self_attn.q_layernorm.bias"


@pytest.mark.parametrize("normed", [True, False])
def test_heads_are_normed_where_the_file_says_so(build_family, normed) -> None:
    assert (NORM in build_family("Persimmon", qk_layernorm=normed).weights.expected) == normed
