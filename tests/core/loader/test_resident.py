"""Files of weights that stay in memory: bounded, refused by name, given up again."""

import ctypes
import errno
from pathlib import Path

import pytest

from hotshoe.errors import CheckpointError, ConfigError, MemoryLimitError
from hotshoe.loader import resident
from hotshoe.loader.resident import ResidentFiles, weight_files


class Library:
    """A C library that locks pages, or says why not."""

    def __init__(self, error: int = 0) -> None:
        self.error, self.locked = error, []

    def mlock(self, address: ctypes.c_void_p, size: ctypes.c_size_t) -> int:
        self.locked.append(ctypes.string_at(address.value, size.value))
        ctypes.set_errno(self.error)
        return -1 if self.error else 0


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for name, content in (("a", b"one"), ("b", b"another")):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    return weight_files(tmp_path)


def test_all_bytes_are_locked_where_they_are(files, monkeypatch) -> None:
    library = Library()
    monkeypatch.setattr(resident.ctypes, "CDLL", lambda *_, **__: library)
    kept = ResidentFiles(files, max_bytes=10)
    assert kept.num_bytes == 10
    assert library.locked == [b"one", b"another"]
    kept.close()
    kept.close()


def test_a_file_that_is_the_model_is_its_weights(files) -> None:
    assert [path.name for path in files] == ["a.safetensors", "b.safetensors"]
    assert weight_files(files[0]) == files[:1]


def test_more_than_is_allowed_is_refused_before_it_is_taken(files, monkeypatch) -> None:
    library = Library()
    monkeypatch.setattr(resident.ctypes, "CDLL", lambda *_, **__: library)
    with pytest.raises(MemoryLimitError, match=r"the 2 files .*raise --max-memory-bytes"):
        ResidentFiles(files, max_bytes=9)
    assert not library.locked


def test_a_limit_of_the_system_is_named(files, monkeypatch) -> None:
    library = Library(errno.ENOMEM)
    monkeypatch.setattr(resident.ctypes, "CDLL", lambda *_, **__: library)
    with pytest.raises(MemoryLimitError, match=r"Cannot allocate memory.*ulimit -l"):
        ResidentFiles(files, max_bytes=10)
    monkeypatch.setattr(resident.ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(ConfigError, match="mlock"):
        ResidentFiles(files, max_bytes=10)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no \*.safetensors"):
        weight_files(tmp_path)
    with pytest.raises(CheckpointError, match="is missing"):
        ResidentFiles([tmp_path / "gone"], 10)
    (tmp_path / "empty").touch()
    with pytest.raises(CheckpointError, match="is empty"):
        ResidentFiles([tmp_path / "empty"], 10)


def test_a_place_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no model at .*nowhere; give its directory"):
        weight_files(tmp_path / "nowhere")
