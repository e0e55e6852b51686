"""Reads the header of a GGUF file: its metadata, and where each tensor lies.

A stranger wrote the file: every count, length and offset is compared with what the file has left
before anything of that size is made. The file is mapped; tensors stay in it. Imports no torch.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hotshoe.errors import CheckpointError
from hotshoe.models.files import MIB, map_file
from hotshoe.models.pointers import pointer_hint
from hotshoe_models.gguf.types import OTHERS, TYPES, BlockType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
#: Far more than any model has, so that a broken count is refused soon.
MAX_TENSORS, MAX_KEYS, MAX_ARRAY = 2**18, 2**16, 2**22
MAX_HEADER_BYTES = 64 * MIB
MAX_STRING_BYTES = 16 * MIB
MAX_NAME_BYTES = 2**16
MAX_DIMS = 4
MAX_NESTING = 4
ALIGNMENT = "general.alignment"
DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 32, 2**20
#: Values that are one number, by type; strings and arrays are read apart.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9


class TensorInfo(NamedTuple):
    """Where a tensor lies; `begin` and `end` are bytes from the start of the file.

    `shape` begins with what the file has last: a matrix is [rows, columns], its rows stored one
    after the other.
    """

    type: BlockType
    shape: tuple[int, ...]
    begin: int
    end: int


class Header:
    """A mapped file's metadata and tensors.

    Attributes:
        path: The file.
        values: Metadata by key: numbers, booleans, text, lists of them.
        tensors: In the order of their data.
        map: The file's bytes; writing to them never reaches it.

    Raises:
        CheckpointError: The file is missing, truncated, malformed or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.map: mmap.mmap = map_file(path)
        reader = _Reader(self.map, self.bad)
        num_tensors, num_keys = self._preamble(reader)
        self.values = self._metadata(reader, num_keys)
        found = [self._info(reader) for _ in range(num_tensors)]
        alignment = self._alignment()
        start = -(-reader.at // alignment) * alignment
        self.tensors = self._placed(found, start, alignment)

    def bad(self, why: str) -> CheckpointError:
        """Return the error for a file that cannot be used."""
        return CheckpointError(f"{self.path} is unusable: {why}; fetch or convert it again")

    def release_through(self, name: str) -> None:
        """Let go of all resident pages up to the end of a tensor."""
        last = self.tensors[name].end // mmap.PAGESIZE * mmap.PAGESIZE
        if last and hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED, 0, last)

    def _preamble(self, reader: _Reader) -> tuple[int, int]:
        """Return the numbers of tensors and of keys."""
        if self.map[:4] != MAGIC:
            raise self.bad(f"it does not begin with GGUF{pointer_hint(self.path)}")
        reader.at = 4
        version = reader.number("I")
        if version not in VERSIONS:
            if version & 0xFFFF == 0:
                raise self.bad("it is written for big-endian machines, which are not served")
            raise self.bad(f"it has version {version} of the format; read are 2 and 3")
        num_tensors, num_keys = reader.number("Q"), reader.number("Q")
        if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
            raise self.bad(
                f"it says that it has {num_tensors} tensors and {num_keys} keys; at most "
                f"{MAX_TENSORS} and {MAX_KEYS} can be"
            )
        return num_tensors, num_keys

    def _metadata(self, reader: _Reader, num_keys: int) -> Mapping[str, Any]:
        values: dict[str, Any] = {}
        for _ in range(num_keys):
            key = reader.text(MAX_NAME_BYTES)
            if key in values:
                raise self.bad(f"it has {key[:200]!r} twice")
            values[key] = reader.value(reader.number("I"))
        return values

    def _alignment(self) -> int:
        found = self.values.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        if type(found) is not int or not 0 < found <= MAX_ALIGNMENT or found & (found - 1):
            raise self.bad(f"{ALIGNMENT} is {found!r:.50}, which is no power of two")
        return found

    def _info(self, reader: _Reader) -> tuple[str, tuple[int, ...], BlockType, int]:
        """Return a tensor's name, shape, type and offset; the offset is still to be checked."""
        name = reader.text(MAX_NAME_BYTES)
        num_dims = reader.number("I")
        if not 1 <= num_dims <= MAX_DIMS:
            raise self.bad(f"{_short(name)} has {num_dims} dimensions; 1 to {MAX_DIMS} can be")
        shape = tuple(reader.number("Q") for _ in range(num_dims))[::-1]
        kind, offset = reader.number("I"), reader.number("Q")
        if kind not in TYPES:
            known = ", ".join(known.name for known in TYPES.values())
            called = OTHERS.get(kind, f"number {kind}")
            raise CheckpointError(
                f"{self.path}: {_short(name)} is of type {called}, which is not read; take a file "
                f"with types of these: {known}"
            )
        if min(shape) < 1 or math.prod(shape) >= 2**60:
            raise self.bad(f"{_short(name)} has a shape that no tensor can have")
        if shape[-1] % TYPES[kind].values:
            raise self.bad(
                f"{_short(name)} has rows of {shape[-1]} values, but {TYPES[kind].name} has "
                f"blocks of {TYPES[kind].values}"
            )
        return name, shape, TYPES[kind], offset

    def _placed(
        self, found: list[tuple[str, tuple[int, ...], BlockType, int]], start: int, alignment: int
    ) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in found:
            nbytes = math.prod(shape) // kind.values * kind.nbytes
            if offset % alignment:
                raise self.bad(f"{_short(name)} lies at {offset}, no multiple of {alignment}")
            if start + offset + nbytes > len(self.map):
                raise self.bad(f"{_short(name)} lies beyond the end: the file is truncated")
            if name in tensors:
                raise self.bad(f"it has {_short(name)} twice")
            tensors[name] = TensorInfo(kind, shape, start + offset, start + offset + nbytes)
        ordered = dict(sorted(tensors.items(), key=lambda item: item[1].begin))
        for (before, first), (name, second) in pairwise(ordered.items()):
            if second.begin < first.end:
                kind = first.type
                raise self.bad(
                    f"{_short(name)} and {_short(before)} overlap, as {kind.values} values of type "
                    f"{kind.name} take {kind.nbytes} bytes"
                )
        return ordered


class _Reader:
    """Takes values from the beginning of a map, one after the other.

    Args:
        data: The whole file.
        bad: Makes the error for a file that cannot be used.
    """

    def __init__(self, data: mmap.mmap, bad: Callable[[str], CheckpointError]) -> None:
        self.at = 0
        self._data, self._bad = data, bad
        self._end = min(len(data), MAX_HEADER_BYTES)

    def take(self, count: int, size: int = 1) -> int:
        """Pass over `count` values of `size` bytes and return where they begin."""
        begin = self.at
        if count * size > self._end - begin:
            limit = "the file ends" if self._end == len(self._data) else "no header has that much"
            raise self._bad(f"its header is cut off: {count * size} bytes are said, but {limit}")
        self.at = begin + count * size
        return begin

    def number(self, code: str) -> int:
        """Return an integer; `code` as in `struct`."""
        begin = self.take(1, struct.calcsize(f"<{code}"))
        found: int = struct.unpack_from(f"<{code}", self._data, begin)[0]
        return found

    def text(self, max_bytes: int = MAX_STRING_BYTES) -> str:
        """Return text, whose length comes first."""
        length = self.number("Q")
        if length > max_bytes:
            raise self._bad(f"it has a text of {length} bytes; at most {max_bytes} can be")
        begin = self.take(length)
        try:
            return self._data[begin : begin + length].decode()
        except UnicodeDecodeError:
            raise self._bad(f"the text at byte {begin} is not UTF-8") from None

    def value(self, kind: int, depth: int = 0) -> Any:
        """Return a value of a type."""
        if kind == _ARRAY:
            return self._array(depth + 1)
        if kind == _STRING:
            return self.text()
        return self._numbers(kind, 1)[0]

    def _array(self, depth: int) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        if depth > MAX_NESTING:
            raise self._bad(f"it has arrays in arrays, more than {MAX_NESTING} deep")
        if count > MAX_ARRAY:
            raise self._bad(f"it has an array of {count} values; at most {MAX_ARRAY} can be")
        if kind in (_STRING, _ARRAY):
            return [self.value(kind, depth) for _ in range(count)]
        return list(self._numbers(kind, count))

    def _numbers(self, kind: int, count: int) -> tuple[Any, ...]:
        if kind == _BOOL:
            begin = self.take(count)
            return tuple(byte != 0 for byte in self._data[begin : self.at])
        if kind not in _NUMBERS:
            raise self._bad(f"it has a value of type {kind}, which is unknown")
        code = _NUMBERS[kind]
        begin = self.take(count, struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{count}{code}", self._data, begin)


def _short(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:200]}..."
