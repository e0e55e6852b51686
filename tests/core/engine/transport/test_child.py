"""The engine process's own duties before it serves; test_process.py has the rest."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotshoe.engine.wire.connection import Connection
from hotshoe.engine.wire.messages import Dead, Side, Start, decode_from_engine, encode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


@pytest.fixture
def channel(folder: Path) -> Iterator[tuple[Connection, subprocess.Popen[str]]]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "hotshoe.engine.transport.child", str(theirs.fileno())]
    command.append(str(folder))
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as child:
        theirs.close()
        control = Connection(ours)
        yield control, child
        control.close()


def test_without_an_owner_it_ends_and_cleans_up(channel, folder: Path) -> None:
    control, child = channel
    control.close()
    assert child.wait(60) == 1
    assert child.stderr.read() == b""
    assert not folder.exists()


@pytest.mark.parametrize(
    ("start", "match"),
    [
        (Start(Side("9.9", 99), {}, "/nowhere/x"), "9.9"),
        (Start(Side(), {"modell": "x"}, "/nowhere/x"), "did you mean model"),
    ],
    ids=["version", "option"],
)
def test_what_is_wrong_is_said_over_the_channel(channel, start: Start, match: str) -> None:
    control, child = channel
    control.send(encode(start))
    said = decode_from_engine(control.fetch(60))
    assert isinstance(said, Dead) and said.error.kind == "ConfigError"
    assert match in said.error.message
    assert child.wait(60) == 1
    assert child.stderr.read() == b""


def test_a_socket_that_cannot_be_made_is_said(channel, model_dir: Path) -> None:
    control, child = channel
    config = {"model": str(model_dir), "platform": "null"}
    control.send(encode(Start(Side(), config, "/nowhere/x.sock")))
    said = decode_from_engine(control.fetch(60))
    assert isinstance(said, Dead) and "cannot make a socket at /nowhere" in said.error.message
    assert child.wait(60) == 1


def test_a_signal_at_its_end_does_not_disturb_it() -> None:
    code = (
        "import os, signal, socket\n"
        "from hotshoe.engine.transport.child import Child, Connection\n"
        "ours, theirs = socket.socketpair()\n"
        "ours.close()\n"
        "code = Child(Connection(theirs), None).run()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('ended with', code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("ended with 1\n", "")


def test_nor_does_one_that_comes_while_it_tells_why() -> None:
    code = (
        "import os, signal, socket\n"
        "from hotshoe.engine.transport.child import Child, Connection\n"
        "class Hasty(Connection):\n"
        "    def send(self, message):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        print('told')\n"
        "ours, theirs = map(Connection, socket.socketpair())\n"
        "theirs.__class__ = Hasty\n"
        "ours.send(b'no start')\n"
        "print('ended with', Child(theirs, None).run())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "told\nended with 1\n"
    assert "Stopped" not in done.stderr
