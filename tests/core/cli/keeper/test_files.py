"""Files of modules that were imported, and whether they are still those."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from hotshoe.cli.keeper.files import LoadedFiles


@pytest.fixture
def file(tmp_path: Path, monkeypatch) -> Path:
    module, file = ModuleType("a_module_with_a_file"), tmp_path / "module.py"
    file.write_text("")
    module.__file__ = str(file)
    monkeypatch.setattr(sys, "modules", {module.__name__: module, "built in": ModuleType("none")})
    return file


def test_changes_are_noticed(file: Path) -> None:
    seen = LoadedFiles()
    assert seen.are_unchanged()
    file.write_text("x = 1")
    assert not seen.are_unchanged()
    assert LoadedFiles().are_unchanged()


def test_a_file_that_goes_is_a_change(file: Path) -> None:
    seen = LoadedFiles()
    file.unlink()
    assert not seen.are_unchanged()
