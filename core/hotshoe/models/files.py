"""Reads files of model directories, which strangers wrote: regular files alone, bounded in size.

Opening a pipe would wait for its writer, and a device may have no end. So a file is opened without
blocking, and asked for its kind and size before a byte is read. Each reader of such files uses it.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from hotshoe.errors import CheckpointError

MIB = 2**20
#: Of an integer of 64 bits, with its sign.
MAX_DIGITS = 20


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        CheckpointError: It is missing, cannot be opened, or is a pipe, a device or a directory.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        file = os.open(path, flags)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; check the path, or fetch the file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        cause = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{str(path)[:500]} cannot be read: {cause}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise CheckpointError(f"{path} is no regular file; put a copy of the whole file there")
    return os.fdopen(file, "rb")


def map_file(path: Path) -> mmap.mmap:
    """Map a regular file. Writing to the map never reaches the file.

    Raises:
        CheckpointError: As `open_regular`, or the file is empty or cannot be mapped.
    """
    try:
        with open_regular(path) as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be mapped: {error}; fetch it again") from None


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return a regular file's content.

    Raises:
        CheckpointError: As `open_regular`, or the file is longer than `max_bytes`.
    """
    with open_regular(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        try:
            # A file that a kernel makes up says that it has no size.
            data = b"" if num_bytes > max_bytes else file.read(max_bytes + 1)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if max(num_bytes, len(data)) > max_bytes:
        raise CheckpointError(
            f"{path} cannot be read: it has more than {max_bytes // MIB} MiB, as no such file has"
        )
    return data


def read_text(path: Path, max_bytes: int) -> str:
    """Return a regular file's text in UTF-8.

    Raises:
        CheckpointError: As `read_file`, or it is not UTF-8.
    """
    try:
        return read_file(path, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def parse_json(
    text: str | bytes, object_hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Return what JSON says.

    Args:
        text: Of the file.
        object_hook: Makes something else of an object.

    Raises:
        ValueError: It is none, or has an integer that no tensor's size, place or number reaches.
        RecursionError: It is nested too deeply.
    """
    return json.loads(text, parse_int=_integer, object_hook=object_hook)


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)
