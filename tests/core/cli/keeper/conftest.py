"""Keepers whose forks run a stand-in for the command line, and clients of theirs."""

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BOTH = """
import sys
from pathlib import Path
from hotshoe.cli.keeper import client, place
place.folder = lambda: Path({folder!r})
"""
KEEPER = """
import os, random, signal, threading
import hotshoe.cli.__main__ as program
from hotshoe.cli.keeper.forking import ImportKeeper

def stand_in(heeded):
    exec(sys.argv[2])
    return 0

program.run_here = stand_in
end = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: end.set())
name, before = place.digest(), dict(os.environ)
os.environ["SET_BY_AN_IMPORT"] = "1"
keeper = ImportKeeper(name, before)
os.environ.pop("SET_BY_AN_IMPORT")
print("ready", flush=True)
request = keeper.serve(end, lambda line: print(line, flush=True))
if request is not None:
    sys.exit(request.run())
keeper.close()
print("closed")
"""
CLIENT = """
code = client.run_forked(["generate", *sys.argv[1:]])
if code is None:
    print("here")
sys.exit(code)
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as short:  # a socket's path has at most 107 bytes
        yield Path(short, "sockets")


@pytest.fixture
def keep(folder: Path) -> Iterator[Start]:
    """Starts keepers, with lines of code before they begin."""
    yield from starting(folder, KEEPER, expect="ready\n")


@pytest.fixture
def ask(folder: Path) -> Iterator[Start]:
    """Starts clients that ask for code to be run."""
    yield from starting(folder, CLIENT)


def starting(folder: Path, code: str, expect: str = "") -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str, prelude: str = "", **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", BOTH.format(folder=str(folder)) + prelude + code, *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, text=True, **{**pipes, **options})
        processes.append(process)
        if expect:
            said = process.stdout.readline()
            assert said == expect, said + process.stdout.read()
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate(timeout=60)


def has_ended(pid: int) -> bool:
    """Return whether a process ends within a minute."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    return bool(poll.poll(60_000))
