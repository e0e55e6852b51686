"""Falcon: what is refused."""

import pytest

from hotshoe.errors import CheckpointError

BAD = [
    ({"alibi": True}, "alibi.*rotary"),
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
