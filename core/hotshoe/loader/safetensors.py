"""Reads safetensors files as memory maps, releasing pages as soon as a tensor has been taken.

Tensors are views into the map: nothing is copied, and resident memory stays near the size of what
the engine keeps. Source of the format: https://github.com/huggingface/safetensors (8-byte length,
JSON header, data).
"""

from __future__ import annotations

import json
import math
import mmap
import os
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.models.files import map_file, open_regular
from hotshoe.models.pointers import pointer_hint

MAX_HEADER_BYTES = 100_000_000
#: Files with more tensors would take long to be refused; the largest known have some ten thousand.
MAX_TENSORS = 2**18
MAX_DIMS = 16

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
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
}
#: Numbers of four bits: two of a row are in a byte, and come as one.
PAIRS = "F4"


class Entry(NamedTuple):
    """One tensor of a header: `begin` and `end` are bytes from the start of the data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """One mapped file. The map lives as long as any tensor taken from it.

    Raises:
        CheckpointError: The file is missing, truncated or malformed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map = map_file(path)
        header, self._data_start = self._read_header()
        self._entries = self._read_entries(header)

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
        if len(header) > MAX_TENSORS:
            raise self._bad(f"it has more than {MAX_TENSORS} tensors, as no file of a model has")
        return header, 8 + length

    def _read_entries(self, header: dict[str, Any]) -> dict[str, Entry]:
        """Return the entries in the order of their data, each checked once."""
        found = {name: self._entry(name, fields) for name, fields in header.items()}
        entries = dict(sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)))
        for (before, first), (name, second) in pairwise(entries.items()):
            if second.begin < first.end:
                raise self._bad(f"{_short(name)} and {_short(before)} overlap")
        return entries

    def _bad(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path} is unusable: {what}; fetch or export it again")

    def names(self) -> list[str]:
        """Return the tensors' names in the order of their data."""
        return list(self._entries)

    def _entry(self, name: str, fields: Any) -> Entry:
        try:
            begin, end = fields["data_offsets"]
            kind, shape = fields["dtype"], tuple(fields["shape"])
            dtype = torch.uint8 if kind == PAIRS else DTYPES[kind]
        except (KeyError, TypeError, ValueError):
            raise self._bad(
                f"the entry of {_short(name)} is malformed or of an unknown type; read are "
                f"{', '.join((*DTYPES, PAIRS))}"
            ) from None
        if not all(type(number) is int for number in (begin, end, *shape)):
            raise self._bad(
                f"the entry of {_short(name)} is malformed: sizes and offsets are integers"
            )
        if not _possible(shape):
            raise self._bad(f"{_short(name)} has a shape that no tensor can have")
        if kind == PAIRS:
            if not shape or shape[-1] % 2:
                raise self._bad(f"{_short(name)} has rows whose numbers of four bits fill no bytes")
            shape = (*shape[:-1], shape[-1] // 2)
        if min(shape, default=0) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
            raise self._bad(f"{_short(name)} has offsets that do not match its shape")
        if not 0 <= begin <= end <= len(self._map) - self._data_start:
            raise self._bad(f"{_short(name)} lies beyond the end: the file is truncated")
        return Entry(dtype, shape, begin, end)

    def tensor(self, name: str) -> Tensor:
        """Return a view of a tensor's bytes; writing to it never reaches the file."""
        dtype, shape, begin, end = self._entries[name]
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        offset = self._data_start + begin
        if offset % dtype.itemsize:  # legal in the format, though writers avoid it
            raw = bytearray(self._map[offset : offset + end - begin])
            return torch.frombuffer(raw, dtype=dtype).view(shape)
        flat = torch.frombuffer(
            self._map, dtype=dtype, offset=offset, count=(end - begin) // dtype.itemsize
        )
        return flat.view(shape)

    def read(self, name: str, begin: int, target: memoryview) -> None:
        """Read a tensor's bytes from `begin` on, without the map, by any thread.

        Raises:
            CheckpointError: The file cannot be read any more, or has become shorter.
        """
        offset, there = self._data_start + self._entries[name].begin + begin, 0
        try:
            with open_regular(self._path) as file:
                while there < len(target):
                    count = os.preadv(file.fileno(), [target[there:]], offset + there)
                    if not count:
                        raise self._bad(f"it ends within {_short(name)}")
                    there += count
        except OSError as error:
            raise self._bad(f"it cannot be read ({error})") from error

    def release_through(self, name: str) -> None:
        """Let go of all resident pages up to the end of a tensor.

        A layer may take several tensors together once the last has come, so earlier ones are
        let go of again. A later read fetches pages from the file anew.
        """
        first = -(-self._data_start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (self._data_start + self._entries[name].end) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


def _possible(shape: tuple[int, ...]) -> bool:
    """Tell whether strides and counts of a shape fit into 64 bits, also where one size is zero."""
    if len(shape) > MAX_DIMS or any(size >= 2**63 for size in shape):
        return False
    return math.prod(max(size, 1) for size in shape) < 2**60


def _short(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:200]}..."
