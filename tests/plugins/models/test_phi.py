"""Phi-1 to 2: what is refused."""

import pytest

from hotshoe.errors import CheckpointError

BAD = [
    ({"qk_layernorm": 1}, "qk_layernorm.*true or false"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings.*bias"),
    ({"hidden_act": "tanh"}, "hidden_act.*tanh.*relu"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Phi", **values)
