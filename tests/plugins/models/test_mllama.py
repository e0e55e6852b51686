"""Llama 3.2 Vision: layers of text move up, those that look at images are not read."""

import pytest

from hotshoe.errors import CheckpointError

SMALL = {"num_hidden_layers": 6, "cross_attention_layers": [1, 4]}


def test_layers_of_text_move_up(build_family):
    ctx = build_family("Mllama", **SMALL)
    assert len(ctx.cache_layers) == 4
    known = {i: ctx.weights.known_as(f"model.layers.{i}.mlp.up_proj.weight") for i in range(6)}
    places = {0: 0, 2: 1, 3: 2, 5: 3}
    for old, new in places.items():
        assert known[old] == f"model.layers.{new}.mlp.up_proj.weight"
        assert ctx.weights.wants(known[old])
    for seeing in (1, 4):
        assert not ctx.weights.wants(known[seeing])
    assert ctx.weights.expected["model.embed_tokens.weight"].shape == (64 + 8, 128)
    assert ctx.weights.expected["lm_head.weight"].shape == (64, 128)


@pytest.mark.parametrize("layers", [5, ["1"], list(range(6))])
def test_other_lists_are_refused(build_family, layers):
    with pytest.raises(CheckpointError, match="cross_attention_layers"):
        build_family("Mllama", **{**SMALL, "cross_attention_layers": layers})
