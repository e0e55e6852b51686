"""Falcon: what is refused."""

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.slots import Alibi

BAD = [
    ({"alibi": 1}, "alibi is 1.*true or false"),
    (
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 3},
        "num_ln_in_parallel_attn.*one norm or two",
    ),
    ({"new_decoder_architecture": True, "num_kv_heads": 3}, "num_kv_heads is 3"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("Falcon", **values)


def test_slopes_take_the_place_of_rotation(build_family) -> None:
    [layer, *_] = build_family("Falcon", alibi=True, multi_query=False).cache_layers
    assert layer.spec.alibi == Alibi(8, factor=0.25)
    assert layer._cos_sin is None
