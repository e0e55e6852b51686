"""Prompt embeddings as they come in a body; what is malformed is tested over HTTP."""

import base64
import io
import struct

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


def file_of(header: str, data: bytes = b"", version: bytes = b"\1\0") -> str:
    length = struct.pack("<H" if version == b"\1\0" else "<I", len(header))
    return base64.b64encode(b"\x93NUMPY" + version + length + header.encode() + data).decode()


SAYS = "{{'descr': '{}', 'fortran_order': False, 'shape': {}}}\n"
HOSTILE = {
    "rows of nothing": (file_of(SAYS.format("<f4", "(1000000000, 0)")), "holds no numbers"),
    "an end that does not come": (file_of("{'descr':" + "[" * 900), "another array"),
    "signs": (file_of("-" * 900 + "1"), "another array"),
    "a long header": (file_of(" " * 2000), "more than 1024 bytes"),
    "an unknown version": (file_of(SAYS.format("<f4", "(1, 1)"), b"1234", b"\7\7"), "begin as one"),
    "one dimension": (file_of(SAYS.format("<f4", "(1,)"), b"1234"), "another array"),
    "dates": (file_of(SAYS.format("<M8", "(1, 1)"), b"12345678"), "another array"),
    "a size beyond integers": (file_of(SAYS.format("<f4", f"({10**14}, {10**14})")), "its size"),
    "nothing behind its name": (base64.b64encode(b"\x93NUMPY\1").decode(), "begin as one"),
}


@pytest.mark.parametrize(("text", "words"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_embeds(text)


@pytest.mark.parametrize("version", [b"\2\0", b"\3\0"])
def test_later_versions_of_the_format_are_read(version: bytes) -> None:
    rows = np.ones((2, 1), ">f2")
    text = file_of(SAYS.format(rows.dtype.str, rows.shape), rows.tobytes(), version)
    assert np.array_equal(read_embeds(text), rows)
