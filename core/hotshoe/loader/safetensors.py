"""Reads safetensors files as memory maps, releasing pages as soon as a tensor has been taken.

Tensors are views into the map: nothing is copied, and resident memory stays near the size of what
the engine keeps. Source of the format: https://github.com/huggingface/safetensors (8-byte length,
JSON header, data).
"""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.models.pointers import pointer_hint

MAX_HEADER_BYTES = 100_000_000

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


class SafetensorsFile:
    """One mapped file. The map lives as long as any tensor taken from it.

    Raises:
        CheckpointError: The file is missing, truncated or malformed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise CheckpointError(f"{path} is no file; give the directory of a whole checkpoint")
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be mapped: {error}; fetch it again") from None
        self._header, self._data_start = self._read_header()

    def _read_header(self) -> tuple[dict[str, Any], int]:
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            hint = pointer_hint(self._path)
            raise self._bad(f"its header is cut off or is not a safetensors header{hint}")
        try:
            header = json.loads(self._map[8 : 8 + length])
        except (ValueError, RecursionError):
            raise self._bad("its header is not JSON") from None
        if not isinstance(header, dict):
            raise self._bad("its header is not a JSON object")
        header.pop("__metadata__", None)
        return header, 8 + length

    def _bad(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path} is unusable: {what}; fetch or export it again")

    def names(self) -> list[str]:
        """Return the tensors' names in the order of their data."""
        return sorted(self._header, key=lambda name: self._span(name)[0])

    def _span(self, name: str) -> tuple[int, int]:
        entry = self._header[name]
        try:
            begin, end = entry["data_offsets"]
            dtype, shape = DTYPES[entry["dtype"]], list(entry["shape"])
        except (KeyError, TypeError, ValueError):
            raise self._bad(f"the entry of {name} is malformed or of an unknown type") from None
        if not all(type(number) is int for number in (begin, end, *shape)):
            raise self._bad(f"the entry of {name} is malformed: sizes and offsets are integers")
        if min(shape, default=0) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
            raise self._bad(f"{name} has offsets that do not match its shape")
        if not 0 <= begin <= end <= len(self._map) - self._data_start:
            raise self._bad(f"{name} lies beyond the end: the file is truncated")
        return begin, end

    def tensor(self, name: str) -> Tensor:
        """Return a view of a tensor's bytes; writing to it never reaches the file."""
        begin, end = self._span(name)
        entry = self._header[name]
        dtype = DTYPES[entry["dtype"]]
        if begin == end:
            return torch.empty(entry["shape"], dtype=dtype)
        offset = self._data_start + begin
        if offset % dtype.itemsize:  # legal in the format, though writers avoid it
            raw = bytearray(self._map[offset : offset + end - begin])
            return torch.frombuffer(raw, dtype=dtype).view(entry["shape"])
        flat = torch.frombuffer(
            self._map, dtype=dtype, offset=offset, count=(end - begin) // dtype.itemsize
        )
        return flat.view(entry["shape"])

    def release_through(self, name: str) -> None:
        """Let go of all resident pages up to the end of a tensor.

        A layer may take several tensors together once the last has come, so earlier ones are
        let go of again. A later read fetches pages from the file anew.
        """
        first = -(-self._data_start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (self._data_start + self._span(name)[1]) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
