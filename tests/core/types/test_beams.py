"""Parameters of a beam search are bounded when they are built."""

import math

import pytest

from hotshoe.errors import RequestError
from hotshoe.types import BeamSearchParams


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 65}, "beam_width"),
        ({"beam_width": None}, "beam_width"),
        ({"beam_width": True}, "beam_width"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.0}, "max_tokens"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"length_penalty": -11}, "length_penalty"),
        ({"length_penalty": 10**400}, "length_penalty"),
        ({"length_penalty": "1"}, "length_penalty"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"adapter": 1}, "adapter"),
    ],
)
def test_values_out_of_range_are_named(values, field: str) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        BeamSearchParams(**{"beam_width": 2, **values})
    assert caught.value.field == field


def test_no_limit_of_tokens_but_the_models() -> None:
    assert BeamSearchParams(2, max_tokens=None).max_tokens is None
