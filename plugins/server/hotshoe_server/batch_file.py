"""Files of batches in OpenAI's form: what is asked, what has been answered, and how both are read.

A line of the input is one request, a line of the output one answer. Everything about the input is
checked before a model is loaded. A request is kept as its place in the file, so that a long file
takes little memory. Standard library only, but for JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from hotshoe.errors import ConfigError

MAX_LINE_BYTES = 2**26
#: How many mistakes are named before the rest is only counted.
MAX_NAMED = 10


class Line(msgspec.Struct):
    """One request."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class Answered(msgspec.Struct):
    """Of an answer, which request it belongs to."""

    custom_id: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a request is in its file."""

    custom_id: str
    offset: int


def check_regular(path: Path) -> None:
    """Refuse pipes and devices: both files of a batch are read more than once, to their ends.

    Raises:
        ConfigError: It is one.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigError(f"{path} is a pipe or a device; name a file")


def read_entries(path: Path, urls: Sequence[str]) -> list[Entry]:
    """Check every line of an input.

    Args:
        path: The file; blank lines are left out.
        urls: Which may be asked.

    Raises:
        ConfigError: The file cannot be read, or lines are malformed; the first are named.
    """
    entries, mistakes, seen = [], list[str](), dict[str, int]()
    check_regular(path)
    try:
        with path.open("rb") as file:
            for number, offset, text in _lines(file):
                try:
                    line = check_line(text, urls)
                except ValueError as error:
                    mistakes.append(f"line {number}: {error}")
                    continue
                earlier = seen.setdefault(line.custom_id, number)
                if earlier != number:
                    mistakes.append(
                        f"line {number}: custom_id {line.custom_id!r} is that of line {earlier}"
                    )
                entries.append(Entry(line.custom_id, offset))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if mistakes:
        more = len(mistakes) - MAX_NAMED
        rest = f"; {more} further lines are malformed" if more > 0 else ""
        raise ConfigError(f"{path}: " + "; ".join(mistakes[:MAX_NAMED]) + rest)
    if not entries:
        raise ConfigError(f"{path} holds no request")
    return entries


def check_line(text: bytes, urls: Sequence[str]) -> Line:
    """Return a line's request.

    Raises:
        ValueError: It is malformed.
    """
    if len(text) > MAX_LINE_BYTES:
        raise ValueError(f"it has {len(text)} bytes; at most {MAX_LINE_BYTES} can be")
    try:
        line = msgspec.json.decode(text, type=Line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if line.method != "POST":
        raise ValueError(f"method must be POST, not {line.method!r}")
    if line.url not in urls:
        raise ValueError(f"url must be one of {', '.join(urls)}, not {line.url!r}")
    if line.body.get("stream"):
        raise ValueError("a batch does not stream; leave out stream")
    return line


def read_line(file: IO[bytes], entry: Entry) -> Line:
    """Return a request that was checked before.

    Raises:
        ConfigError: The file has been changed since.
    """
    file.seek(entry.offset)
    try:
        line = msgspec.json.decode(file.readline(), type=Line)
        if line.custom_id == entry.custom_id:
            return line
    except (msgspec.MsgspecError, RecursionError):
        pass
    raise ConfigError(f"{file.name} has been changed while it was read; start again")


@contextlib.contextmanager
def open_output(path: Path, entries: Sequence[Entry]) -> Iterator[tuple[IO[bytes], set[str]]]:
    """Open an output for more answers; yield it with the custom_id of each that it has.

    A last line without an end, as a killed process leaves one, is cut off.

    Raises:
        ConfigError: It cannot be written, is no regular file, is written by another process, or
            holds other answers.
    """
    check_regular(path)
    try:
        with path.open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"{path} is being written by another process") from None
            yield file, _answered(file, {entry.custom_id for entry in entries})
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def _answered(file: IO[bytes], known: set[str]) -> set[str]:
    found: set[str] = set()
    file.seek(0)
    end = 0
    for number, offset, text in _lines(file):
        if not text.endswith(b"\n"):
            break
        try:
            custom_id = msgspec.json.decode(text, type=Answered).custom_id
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ConfigError(f"{file.name}, line {number} is no answer: {error}") from None
        if custom_id not in known:
            raise ConfigError(
                f"{file.name} has an answer to {custom_id!r}, which the input does not ask; "
                "name another output"
            )
        found.add(custom_id)
        end = offset + len(text)
    file.truncate(end)
    file.seek(0, os.SEEK_END)
    return found


def _lines(file: IO[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, offset and text of each line that is not blank, of bounded length."""
    number = offset = 0
    while text := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        here, offset = offset, offset + len(text)
        while len(text) > MAX_LINE_BYTES and not text.endswith(b"\n"):
            more = file.readline(MAX_LINE_BYTES)
            offset += len(more)
            if not more or more.endswith(b"\n"):
                break
        if text.strip():
            yield number, here, text
