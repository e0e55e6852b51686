"""GPT-J: how much of a head is rotated, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError

BAD = [
    ({"rotary_dim": 20}, "rotary_dim is 20.*16 channels"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings.*bias"),
    ({"activation_function": "tanh"}, "activation_function.*tanh"),
]
SIZES = {"n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8}


def test_pairs_of_neighbors_are_rotated(build_family) -> None:
    found = build_family("GPTJ", **SIZES).selector.decisions
    (spec,) = {spec for slot, spec in found if slot == "rotary_and_cache"}
    assert (spec.rotary_dim, spec.head_dim, spec.interleaved) == (8, 16, True)


def test_heads_of_codegen_come_in_fourths(build_family) -> None:
    weights = build_family("CodeGen", **SIZES).weights
    assert weights.expected["transformer.h.1.attn.qkv_proj.weight"].shape == (192, 64)
    assert not weights.wants("transformer.h.0.attn.causal_mask")
    with pytest.raises(CheckpointError, match=r"n_head is 2.*4 shares"):
        build_family("CodeGen", **{**SIZES, "n_head": 2})


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("GPTJ", **{**SIZES, **values})
