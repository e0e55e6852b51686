"""Prompt embeddings as they come in a body; what is malformed is tested over HTTP."""

import base64
import io

import numpy as np
import pytest

from hotshoe.errors import RequestError
from hotshoe_server.embeds import read_embeds


def encoded(array: np.ndarray, **options: bool) -> str:
    file = io.BytesIO()
    np.save(file, array, **options)
    return base64.b64encode(file.getvalue()).decode()


def test_an_array_is_read_as_it_was_written() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    for array in (rows, np.asfortranarray(rows)):
        assert np.array_equal(read_embeds(encoded(array)), rows)


def test_nothing_is_unpickled() -> None:
    with pytest.raises(RequestError, match="never unpickled"):
        read_embeds(encoded(np.array([{}]), allow_pickle=True))
