"""Reads prompt embeddings that a client sends: nothing in them is run, sizes are checked first."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np

from hotshoe.errors import RequestError


def read_embeds(encoded: str) -> Any:
    """Read base64 of a NumPy file (.npy) with an array [num_tokens, hidden_size].

    Raises:
        RequestError: It is no such file, or holds objects, which would be unpickled.
    """
    try:
        data = base64.b64decode(encoded, validate=True)
        if data[:2] == b"PK":
            raise ValueError("a file of torch.save or numpy.savez is never unpacked")
        return _read_array(data)
    except (ValueError, TypeError, SyntaxError) as error:
        raise RequestError(
            "prompt_embeds is base64 of a file that numpy.save writes, [num_tokens, hidden_size] "
            f"of floating point: {error}",
            "prompt_embeds",
        ) from None


def _read_array(data: bytes) -> Any:
    """Return the array of a NumPy file, a view; its size is checked before it is believed."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
        version, np.lib.format.read_array_header_2_0
    )
    shape, in_columns, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds objects, which are never unpickled")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError("its shape does not match its size")
    flat = np.frombuffer(data, dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if in_columns else "C")
