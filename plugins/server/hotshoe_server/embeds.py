"""Reads prompt embeddings that a client sends: nothing in them is run, sizes are checked first."""

from __future__ import annotations

import base64
import math
import re
from typing import Any

import numpy as np

from hotshoe.errors import RequestError

#: What `numpy.save` writes before an array. Its header is a dictionary in Python's words; NumPy has
#: the interpreter parse it, here three entries are looked for. Source: `numpy.lib.format`.
MAGIC = b"\x93NUMPY"
#: Bytes of the header's length, by version.
LENGTHS = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
#: `numpy.save` needs 128.
MAX_HEADER_BYTES = 1024
KIND = re.compile(rb"""["']descr["']\s*:\s*["']([<>|=]f[248])["']""")
ORDER = re.compile(rb"""["']fortran_order["']\s*:\s*(True|False)""")
SHAPE = re.compile(rb"""["']shape["']\s*:\s*\(\s*(\d{1,15})\s*,\s*(\d{1,15})\s*,?\s*\)""")


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
    except ValueError as error:
        raise RequestError(
            "prompt_embeds is base64 of a file that numpy.save writes, [num_tokens, hidden_size] "
            f"of floating point: {error}",
            "prompt_embeds",
        ) from None


def _read_array(data: bytes) -> Any:
    """Return the array of a NumPy file, a view; its size is checked before it is believed.

    Raises:
        ValueError: It is none that is wanted here.
    """
    size = LENGTHS.get(data[6:8], 0)
    if data[:6] != MAGIC or not size:
        raise ValueError("it does not begin as one")
    begin = 8 + size
    num_bytes = int.from_bytes(data[8:begin], "little")
    if num_bytes > MAX_HEADER_BYTES:
        raise ValueError(f"its header has more than {MAX_HEADER_BYTES} bytes")
    end = begin + num_bytes
    kind, order, shape = (field.search(data, begin, end) for field in (KIND, ORDER, SHAPE))
    if kind is None or order is None or shape is None:
        raise ValueError("its header describes another array; objects are never unpickled")
    dtype, sizes = np.dtype(kind[1].decode()), [int(size) for size in shape.groups()]
    if 0 in sizes:  # a billion rows of nothing have no bytes
        raise ValueError("it holds no numbers")
    if math.prod(sizes) * dtype.itemsize != len(data) - end:
        raise ValueError("its shape does not match its size")
    flat = np.frombuffer(data, dtype, offset=end)
    return flat.reshape(sizes, order="F" if order[1] == b"True" else "C")
