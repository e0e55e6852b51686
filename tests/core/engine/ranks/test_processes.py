"""Ranks that are processes: what they say, how they end, and that nothing is left."""

import sys
import time
from pathlib import Path

import pytest

from hotshoe.engine.ranks.processes import ProcessGroup
from hotshoe.executor import Seat

#: Says its name, and each message or how long it is, until one is empty.
ECHO = """
import socket, sys
from hotshoe.engine.wire.connection import Connection
connection = Connection(socket.socket(fileno=int(sys.argv[1])))
connection.send(sys.argv[2].encode())
while message := connection.fetch():
    connection.send(message if len(message) < 100 else b"%d" % len(message))
sys.exit(3)
"""


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ranks 2 and 3 of an engine of four."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = ProcessGroup(4, range(2, 4), [sys.executable, "-c", ECHO])
    yield made
    made.stop()
    assert list(tmp_path.iterdir()) == []


def heard(group: ProcessGroup, count: int) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += group.receive(0.1)
    return sorted(found, key=lambda entry: (entry[0], entry[1] is None))


def test_messages_go_to_their_rank_and_back(group: ProcessGroup) -> None:
    def first(seat: Seat) -> bytes:
        return f"{seat.rank} {seat.part} {Path(seat.directory).is_dir()}".encode()

    group.start(first)
    assert heard(group, 4) == [
        (2, b"rank-2-of-4"),
        (2, b"2 (0, 2) True"),
        (3, b"rank-3-of-4"),
        (3, b"3 (1, 2) True"),
    ]
    group.send(3, b"x" * (1 << 22))
    assert heard(group, 1) == [(3, b"4194304")]
    assert group.receive(0) == []


def test_a_rank_that_goes_says_so_once(group: ProcessGroup) -> None:
    group.start(lambda seat: b"x")
    heard(group, 4)
    group.send(2, b"")
    assert heard(group, 1) == [(2, None)]
    assert group.ending(2) == "ended with 3"
    assert group.name(3) == f"process {group.ranks[1].process.pid}"
    group.send(3, b"still here")
    assert heard(group, 1) == [(3, b"still here")]


def test_it_may_be_stopped_twice_or_before_it_starts(group: ProcessGroup) -> None:
    group.stop()
    group.start(lambda seat: b"x")
    processes = [rank.process for rank in group.ranks]
    group.stop()
    group.stop()
    assert all(process.poll() is not None for process in processes)
    group.send(2, b"nobody")
