"""The memory-mapped reader: equal values, released pages, and every way a file can be broken."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hotshoe.errors import CheckpointError
from hotshoe.loader import safetensors
from hotshoe.loader.safetensors import SafetensorsFile


def write(path: Path, header: dict[str, object], data: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def resident_kib(path: Path) -> int:
    """Return how much of a mapped file is in this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_values_equal_what_was_saved(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: torch.randn(7, 5).mul(50).to(dtype) for name in "cab"}
    tensors["empty"] = torch.zeros(0, 3, dtype=dtype)
    save_file(tensors, tmp_path / "m.safetensors")
    file = SafetensorsFile(tmp_path / "m.safetensors")
    assert sorted(file.names()) == sorted(tensors)
    for name, expected in tensors.items():
        assert torch.equal(file.tensor(name), expected)


@pytest.mark.parametrize("kind", [*safetensors.DTYPES, "F4"])
def test_every_type_is_read_as_by_the_formats_own_library(tmp_path: Path, kind: str) -> None:
    size = 1 if kind == "F4" else safetensors.DTYPES[kind].itemsize
    data = os.urandom(12 * size) if kind != "BOOL" else bytes([0, 1] * 6)
    shape = [3, 8] if kind == "F4" else [3, 4]
    header = {"w": {"dtype": kind, "shape": shape, "data_offsets": [0, len(data)]}}
    path = write(tmp_path / "m.safetensors", header, data)
    found, wanted = SafetensorsFile(path).tensor("w"), load_file(path)["w"]
    assert found.shape == wanted.shape and found.dtype in (wanted.dtype, torch.uint8)
    assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


def test_a_released_tensor_can_still_be_read(tmp_path: Path) -> None:
    saved = torch.randn(300, 1000)
    save_file({"v": saved + 1, "w": saved}, tmp_path / "m.safetensors")
    file = SafetensorsFile(tmp_path / "m.safetensors")
    first, view = file.tensor("v"), file.tensor("w")
    file.release_through("w")
    assert torch.equal(view, saved)
    assert torch.equal(first, saved + 1)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="resident pages are read there")
def test_released_pages_are_not_resident(tmp_path: Path) -> None:
    tensors = {name: torch.ones(1 << 20) for name in "abc"}
    path = tmp_path / "m.safetensors"
    save_file(tensors, path)
    file = SafetensorsFile(path)
    for name in file.names():
        file.tensor(name).sum()
    before = resident_kib(path)
    file.release_through("b")
    middle = resident_kib(path)
    file.release_through("c")
    assert before > 11 << 10
    assert 3 << 10 < middle < 5 << 10
    assert resident_kib(path) < 64


def test_misaligned_data_is_read(tmp_path: Path) -> None:
    values = torch.arange(4, dtype=torch.float32)
    header = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [1, 17]}}
    path = write(tmp_path / "m.safetensors", header, b"x" + values.numpy().tobytes())
    assert torch.equal(SafetensorsFile(path).tensor("w"), values)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BROKEN = {
    "truncated": ({"w": ENTRY}, b"\0" * 4, "truncated"),
    "shape": ({"w": {**ENTRY, "shape": [3]}}, b"\0" * 8, "do not match"),
    "negative": ({"w": {**ENTRY, "shape": [-2]}}, b"\0" * 8, "do not match"),
    "dtype": ({"w": {**ENTRY, "dtype": "F13"}}, b"\0" * 8, "unknown type"),
    "offsets": ({"w": {"dtype": "F32", "shape": [2]}}, b"\0" * 8, "malformed"),
    "fraction": ({"w": {**ENTRY, "shape": [2.5]}}, b"\0" * 8, "integers"),
    "text": ({"w": {**ENTRY, "shape": "2"}}, b"\0" * 8, "integers"),
    "infinite": ({"w": {**ENTRY, "data_offsets": [0, float("inf")]}}, b"\0" * 8, "integers"),
    "three offsets": ({"w": {**ENTRY, "data_offsets": [0, 4, 8]}}, b"\0" * 8, "malformed"),
    "list of types": ({"w": {**ENTRY, "dtype": ["F32"]}}, b"\0" * 8, "malformed"),
    "no entry": ({"w": 5}, b"\0" * 8, "malformed"),
    "six bits": ({"w": {**ENTRY, "dtype": "F6_E2M3"}}, b"\0" * 8, "unknown type; read are F64"),
    "half a byte": ({"w": {**ENTRY, "dtype": "F4", "shape": [2, 7]}}, b"\0" * 8, "fill no bytes"),
    "no bytes": ({"w": {**ENTRY, "dtype": "F4", "shape": []}}, b"\0" * 8, "fill no bytes"),
    "huge": ({"w": {**ENTRY, "shape": [10**30, 0, 2]}}, b"\0" * 8, "no tensor can have"),
}


@pytest.mark.parametrize(("header", "data", "match"), BROKEN.values(), ids=BROKEN)
def test_broken_entries_are_named(tmp_path: Path, header, data, match: str) -> None:
    path = write(tmp_path / "m.safetensors", header, data)
    with pytest.raises(CheckpointError, match=match):
        SafetensorsFile(path).names()


DEEP = struct.pack("<Q", 200_000) + b"[" * 200_000


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"\xff" * 64, struct.pack("<Q", 4) + b"nope", DEEP]
)
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"m\.safetensors"):
        SafetensorsFile(path)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe, missing = tmp_path / "pipe.safetensors", tmp_path / "missing.safetensors"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(CheckpointError, match="is no regular file"):
            SafetensorsFile(path)
    with pytest.raises(CheckpointError, match=r"missing\.safetensors is missing"):
        SafetensorsFile(missing)


def test_a_pointer_of_git_lfs_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        SafetensorsFile(path)


@pytest.mark.parametrize("shape", [[0, 2**70], [0, 2**62, 8], [1] * 100, [2**63 - 1, 0, 2]])
def test_shapes_that_no_tensor_can_have_are_refused(tmp_path: Path, shape: list[int]) -> None:
    size = 1 if 0 not in shape else 0
    header = {"w": {"dtype": "U8", "shape": shape, "data_offsets": [0, size]}}
    with pytest.raises(CheckpointError, match="w has a shape that no tensor can have"):
        SafetensorsFile(write(tmp_path / "m.safetensors", header, b"x"))


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        "empty": {"dtype": "U8", "shape": [0], "data_offsets": [4, 4]},
        "b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]},
    }
    path = tmp_path / "m.safetensors"
    assert SafetensorsFile(write(path, header, bytes(8))).names() == ["a", "empty", "b"]
    header["b"]["data_offsets"] = [3, 7]
    with pytest.raises(CheckpointError, match="overlap"):
        SafetensorsFile(write(path, header, bytes(8)))


def test_more_tensors_than_any_file_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "MAX_TENSORS", 2)
    entry = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    path = write(tmp_path / "m.safetensors", {"a": entry, "b": entry}, b"x")
    assert SafetensorsFile(path).names() == ["a", "b"]
    write(path, {"a": entry, "b": entry, "c": entry}, b"x")
    with pytest.raises(CheckpointError, match="more than 2 tensors"):
        SafetensorsFile(path)


def test_each_entry_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({name: torch.ones(3) for name in "abcd"}, tmp_path / "m.safetensors")
    read: list[str] = []
    entry = SafetensorsFile._entry

    def counting(self: SafetensorsFile, name: str, fields: object) -> safetensors.Entry:
        read.append(name)
        return entry(self, name, fields)

    monkeypatch.setattr(SafetensorsFile, "_entry", counting)
    file = SafetensorsFile(tmp_path / "m.safetensors")
    for name in file.names():
        file.tensor(name)
        file.release_through(name)
    assert sorted(read) == list("abcd")
