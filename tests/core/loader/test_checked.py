"""Marks of checkpoints that are sound: once for each state of the files, and never in the way."""

import os
from pathlib import Path

import pytest

from hotshoe.loader import checked
from hotshoe.loader.checked import is_marked, leave, mark_of

NAMES = ["a", "b"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(checked, "FOLDER", Path("marks"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    return tmp_path / "home"


def test_a_mark_is_of_one_state_of_files_and_of_tensors(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"1234")
    mark = mark_of([file], NAMES)
    assert not is_marked(mark)
    leave(mark)
    assert is_marked(mark_of([file], reversed(NAMES)))
    assert not is_marked(mark_of([file], ["a"]))
    assert not is_marked(mark_of([file, file], NAMES))
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    os.utime(file, ns=(times[0], times[1] + 1))
    assert not is_marked(mark_of([file], NAMES))
    os.utime(file, ns=times)
    assert is_marked(mark_of([file], NAMES))
    other = tmp_path / "other"
    other.write_bytes(b"4321")
    os.utime(other, ns=times)
    other.rename(file)  # of the same size and time
    assert not is_marked(mark_of([file], NAMES))


def test_there_are_never_many_marks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "MOST", 3)
    counts = []
    for number in range(8):
        leave(mark := home / checked.FOLDER / str(number))
        assert is_marked(mark)
        counts.append(len(list(mark.parent.iterdir())))
    assert counts == [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_home_that_cannot_be_written_is_no_fault(home: Path, tmp_path: Path) -> None:
    home.write_text("no folder")
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"1234")
    mark = mark_of([file], NAMES)
    leave(mark)
    assert mark is not None and not is_marked(mark)


def test_who_has_no_home_leaves_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert mark_of([], NAMES) is None
    assert mark_of([tmp_path / "gone"], NAMES) is None
    leave(None)
    assert not is_marked(None)
