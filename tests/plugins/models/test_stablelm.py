"""StableLM: what is refused."""

import pytest

from hotshoe.errors import CheckpointError

BAD = [
    ({"qk_layernorm": 1}, "qk_layernorm.*true or false"),
    ({"hidden_act": "relu"}, "hidden_act.*relu"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("StableLm", **values)
