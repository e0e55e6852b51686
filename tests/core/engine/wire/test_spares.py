"""Spares: a child that was forked ahead serves as one that is started."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotshoe.engine.wire import children, spares
from hotshoe.engine.wire.children import ChildProcess, Times

MODULE = "module_of_a_spare"
ROLE = """
import os, signal, sys
from hotshoe.engine.wire.children import channel_to_owner
def main():
    owner = channel_to_owner()
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    own = os.getpgid(0) == os.getpid()
    owner.send(f"{os.getpid()} {sys.argv[2:]} {blocked} {own} {os.read(0, 1)!r}".encode())
    while (message := owner.fetch()) not in (None, b"end"):
        owner.send(message)
    print("an end")
    return 3
"""
COMMAND = (sys.executable, "-P", "-m", MODULE)
TIMES = Times(leave_s=60.0, killed_s=60.0)


@pytest.fixture
def spare(tmp_path: Path, monkeypatch) -> Iterator[spares.Spare]:
    """One whose fork goes on from here."""
    (tmp_path / f"{MODULE}.py").write_text(ROLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(98))  # not one of the fork's
    role = spares.fork_spare(MODULE, children.BLOCKED)
    if role is not None:
        try:
            os._exit(role.run())
        finally:
            os._exit(99)
    signal.signal(signal.SIGTERM, before)
    [made] = spares._SPARES[MODULE]
    yield made
    spares._SPARES.clear()
    made.channel.close()
    assert made.process.wait(60) is not None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
class TestSpares:
    def test_one_becomes_the_child_that_is_wanted(self, spare) -> None:
        child = ChildProcess(COMMAND, ["a word"])
        said = child.connection.fetch(60)
        assert said == f"{spare.process.pid} ['a word'] True True b''".encode()
        assert child.pid == spare.process.pid and child.code is None
        child.connection.send(b"hello")
        assert child.connection.fetch(60) == b"hello"
        assert not child.wait(0.01)
        child.connection.send(b"end")
        assert child.wait(60) and child.code == 3
        child.terminate()
        child.connection.close()

    def test_others_are_started(self, spare) -> None:
        assert spares.take_spare([sys.executable, "-c", "pass"], []) is None
        assert spares.take_spare([sys.executable, "-m", "another"], []) is None
        assert spares._SPARES.pop(MODULE) == [spare]
        spare.channel.close()
        assert spare.process.wait(60) == 0, "a spare that nobody can want any more ends"

    def test_one_that_has_ended_is_not_taken(self, spare) -> None:
        spare.process.send_signal(signal.SIGKILL)
        assert spare.process.wait(60) == -signal.SIGKILL
        assert spares.take_spare(COMMAND, []) is None

    def test_one_is_stopped_like_any_child(self, spare) -> None:
        child = ChildProcess(COMMAND)
        assert child.connection.fetch(60)
        child.stop(TIMES)
        assert child.code == -signal.SIGTERM
        child.connection.close()
