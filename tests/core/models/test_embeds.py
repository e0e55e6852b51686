"""Prompt embeddings: of every kind of array, or refused by name."""

import numpy as np
import pytest
import torch

from hotshoe.errors import RequestError
from hotshoe.models.embeds import embeds_bytes


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.astype(">f8"),
        np.asfortranarray,
        torch.from_numpy,
        lambda x: torch.from_numpy(x).bfloat16(),
        lambda x: torch.from_numpy(x).requires_grad_(),
        lambda x: x.tolist(),
    ],
)
def test_arrays_of_every_kind_become_the_same_bytes(make) -> None:
    values = np.array([[1.0, -2.5], [0.0, 4.0], [3.0, 0.125]], np.float32)
    data, count = embeds_bytes(make(values), 2)
    assert count == 3
    np.testing.assert_array_equal(np.frombuffer(data, "<f4").reshape(3, 2), values)


@pytest.mark.parametrize(
    ("embeds", "words"),
    [
        (np.zeros((3, 63), np.float32), r"\[num_tokens, 64\] .* not \[3, 63\]"),
        (np.zeros(64, np.float32), r"not \[64\]"),
        (np.zeros((3, 64), np.int32), "not .* of int32"),
        ([[1.0, "x"]], "of <U"),
        ([[1.0], [1.0, 2.0]], "no array"),
        (torch.zeros(3, 64, device="meta"), "no array"),
        (np.full((3, 64), np.nan, np.float32), "NaN, infinity"),
        (np.full((3, 64), np.inf), "NaN, infinity"),
        (np.full((3, 64), 1e300), "beyond float32"),
    ],
)
def test_arrays_that_cannot_be_used_are_named(embeds, words) -> None:
    with pytest.raises(RequestError, match=words) as found:
        embeds_bytes(embeds, 64)
    assert found.value.field == "prompt"
