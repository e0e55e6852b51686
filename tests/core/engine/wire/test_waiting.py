"""A process that was started ahead has imported, and becomes the child that is wanted."""

import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from hotshoe.engine.wire import children, spares
from hotshoe.engine.wire.children import ChildProcess, started_ahead

MODULE = "module_of_a_child"
ROLE = """
import gc, sys
from hotshoe.engine.wire.children import channel_to_owner
imported = [name for name in ("module_beside", "module_that_fails") if name in sys.modules]
def main():
    found = [name for name in ("module_beside", "module_that_fails") if name in sys.modules]
    channel_to_owner().send(f"{imported} {found} {sys.argv[2:]} {gc.isenabled()}".encode())
    return 3
"""
COMMAND = (sys.executable, "-P", "-m", MODULE)
OTHERS = ("module_that_fails", "module_that_is_missing", "module_beside")


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / f"{MODULE}.py").write_text(ROLE)
    (tmp_path / "module_beside.py").write_text("")
    (tmp_path / "module_that_fails.py").write_text("raise RuntimeError('no driver')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_process_imports_and_becomes_the_first_child() -> None:
    with started_ahead(COMMAND, OTHERS):
        pid = spares._SPARES[MODULE][0].process.pid
        child = ChildProcess(COMMAND, ["a word"])
        assert child.pid == pid and not spares.num_spares(MODULE)
        assert child.connection.fetch(60) == b"[] ['module_beside'] ['a word'] True"
    assert child.wait(60) and child.code == 3, "it outlives the start"
    child.connection.close()


def test_those_that_nobody_wants_are_ended() -> None:
    with started_ahead(COMMAND, (), number=2):
        first, second = (spare.process for spare in spares._SPARES[MODULE])
    assert first.poll() is not None and second.poll() is not None
    assert not spares.num_spares(MODULE)


def test_a_forked_one_is_one_of_them(monkeypatch) -> None:
    started = []
    monkeypatch.setattr(children, "_start", lambda *_: started.append(1) or (Mock(), Mock()))
    spares.keep_spare(MODULE, forked := spares.Spare(Mock(), Mock()))
    with started_ahead(COMMAND, (), number=2):
        assert spares._SPARES[MODULE][0] is forked and len(started) == 1


def test_a_start_goes_on_where_the_system_allows_no_process(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(11, os.strerror(11))

    monkeypatch.setattr(children, "_start", refuse)
    with started_ahead(COMMAND, ()):
        assert not spares.num_spares(MODULE)
