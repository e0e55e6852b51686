"""Headers: what a writer wrote is found, and what is broken is refused before memory is taken."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.models.gguf.conftest import info, raw_file, text, write

from hotshoe.errors import CheckpointError
from hotshoe_models.gguf import header
from hotshoe_models.gguf.header import Header

KEYS = {
    "a.text": "grüße",
    "a.flag": True,
    "a.count": 7,
    "a.scale": 0.5,
    "a.words": ["x", "", "yz"],
    "a.numbers": [1, -2, 3],
    "a.flags": [True, False],
}


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refused(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        Header(put(tmp_path / "m.gguf", data))


def test_what_was_written_is_found(tmp_path: Path) -> None:
    tensors = {"w": np.ones((3, 64), np.float32), "b": np.arange(5, dtype=np.float32)}
    path = write(
        tmp_path / "m.gguf", "x", KEYS, tensors, lambda name: "Q8_0" if name == "w" else "F32"
    )
    found, oracle = Header(path), gguf.GGUFReader(path)
    assert {key: found.values[key] for key in KEYS} == KEYS
    assert found.values["general.architecture"] == "x"
    for tensor in oracle.tensors:
        ours = found.tensors[tensor.name]
        assert ours.shape == tuple(map(int, tensor.shape[::-1]))
        assert (ours.begin, ours.end - ours.begin) == (tensor.data_offset, tensor.n_bytes)
        assert ours.type.name == tensor.tensor_type.name
    assert list(found.tensors) == ["w", "b"]


def test_nested_arrays(tmp_path: Path) -> None:
    inner = struct.pack("<IQ2B", 0, 2, 5, 6)
    keys = text("k") + struct.pack("<IIQ", 9, 9, 2) + inner + inner
    assert Header(put(tmp_path / "m", raw_file(keys, counts=(1, 0)))).values == {"k": [[5, 6]] * 2}
    deep = text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9
    refused(tmp_path, raw_file(deep, counts=(1, 0)), "arrays in arrays")


ONE = text("k") + struct.pack("<IB", 7, 1)
HUGE = 2**62
BROKEN = {
    "another magic": (b"GGML" + bytes(60), "does not begin with GGUF"),
    "no bytes": (b"", "cannot be mapped"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 of the format"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "cut off": (b"GGUF\3\0", "cut off"),
    "many tensors": (raw_file(counts=(0, HUGE)), "at most"),
    "many keys": (raw_file(counts=(HUGE, 0)), "at most"),
    "missing keys": (raw_file(counts=(9, 0)), "cut off"),
    "a long key": (raw_file(struct.pack("<Q", HUGE), counts=(1, 0)), "text of"),
    "a long text": (
        raw_file(text("k") + struct.pack("<IQ", 8, 2**20), counts=(1, 0)),
        "cut off: 1048576",
    ),
    "no UTF-8": (raw_file(struct.pack("<QB", 1, 255), counts=(1, 0)), "not UTF-8"),
    "a strange type": (raw_file(text("k") + struct.pack("<I", 99), counts=(1, 0)), "type 99"),
    "a long array": (
        raw_file(text("k") + struct.pack("<IIQ", 9, 0, HUGE), counts=(1, 0)),
        "array of",
    ),
    "an array beyond the end": (
        raw_file(text("k") + struct.pack("<IIQ", 9, 12, 2**20), counts=(1, 0)),
        "cut off: 8388608",
    ),
    "a key twice": (raw_file(ONE * 2, counts=(2, 0)), "'k' twice"),
    "an alignment of 3": (
        raw_file(text("general.alignment") + struct.pack("<II", 4, 3), counts=(1, 0)),
        "no power of two",
    ),
    "no dimension": (raw_file(infos=info("w", (), 0, 0), counts=(0, 1)), "0 dimensions"),
    "9 dimensions": (raw_file(infos=info("w", (1,) * 9, 0, 0), counts=(0, 1)), "9 dimensions"),
    "a type not read": (raw_file(infos=info("w", (256,), 15, 0), counts=(0, 1)), "type Q8_K"),
    "a type unknown": (raw_file(infos=info("w", (4,), 777, 0), counts=(0, 1)), "number 777"),
    "no elements": (raw_file(infos=info("w", (4, 0), 0, 0), counts=(0, 1)), "no tensor can have"),
    "huge": (raw_file(infos=info("w", (HUGE, HUGE), 0, 0), counts=(0, 1)), "no tensor can have"),
    "half a block": (raw_file(infos=info("w", (2, 48), 8, 0), counts=(0, 1)), "blocks of 32"),
    "an odd offset": (
        raw_file(infos=info("w", (4,), 0, 4), data=bytes(64), counts=(0, 1)),
        "no multiple of 32",
    ),
    "truncated": (
        raw_file(infos=info("w", (17,), 0, 0), data=bytes(64), counts=(0, 1)),
        "the file is truncated",
    ),
    "a far offset": (
        raw_file(infos=info("w", (4,), 0, 2**63), data=bytes(64), counts=(0, 1)),
        "the file is truncated",
    ),
    "a tensor twice": (
        raw_file(
            infos=info("w", (4,), 0, 0) + info("w", (4,), 0, 32), data=bytes(64), counts=(0, 2)
        ),
        "w twice",
    ),
    "an overlap": (
        raw_file(
            infos=info("v", (16,), 0, 0) + info("w", (4,), 0, 32), data=bytes(64), counts=(0, 2)
        ),
        "w and v overlap",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(tmp_path: Path, name: str) -> None:
    refused(tmp_path, *BROKEN[name])


def test_the_end_of_a_file_may_not_be_missing(tmp_path: Path, tiny: Path) -> None:
    data = tiny.read_bytes()
    for length in (len(data) - 1, len(data) // 2, 3000, 40, 20, 5):
        refused(tmp_path, data[:length], "unusable")


def test_a_header_may_not_take_the_whole_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header, "MAX_HEADER_BYTES", 64)
    keys = text("k") + struct.pack("<IQ", 8, 100) + bytes(100)
    refused(tmp_path, raw_file(keys, counts=(1, 0)), "no header has that much")


@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.sampled_from([0, 2, 8])),
        max_size=4,
    )
)
def test_tensors_lie_inside_the_file_and_apart(tmp_path_factory, entries) -> None:
    infos = b"".join(info(f"t{i}", (n,), k, at) for i, (n, at, k) in enumerate(entries))
    path = tmp_path_factory.mktemp("files") / "m.gguf"
    put(path, raw_file(infos=infos, data=bytes(256), counts=(0, len(entries))))
    try:
        found = Header(path)
    except CheckpointError:
        return
    spans = sorted((t.begin, t.end) for t in found.tensors.values())
    ends = [0, *(end for _, end in spans)]
    assert all(end <= begin for end, (begin, _) in zip(ends, spans, strict=False))
    assert ends[-1] <= path.stat().st_size
