"""Messages arrive whole, in order and without anybody waiting, however they are cut on the way."""

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.engine.wire import connection
from hotshoe.engine.wire.connection import Connection

Pair = tuple[Connection, Connection]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = map(Connection, socket.socketpair())
    yield left, right
    left.close()
    right.close()


@given(messages=st.lists(st.binary(max_size=40)), cuts=st.lists(st.integers(1, 30), min_size=1))
def test_messages_survive_every_cut(messages: list[bytes], cuts: list[int]) -> None:
    ours, theirs = socket.socketpair()
    receiver = Connection(theirs)
    data = b"".join(struct.pack("<I", len(m)) + m for m in messages)
    found: list[bytes] = []
    with ours:
        while data:
            for cut in cuts:
                ours.sendall(data[:cut])
                data = data[cut:]
                found += receiver.receive()
    assert found + receiver.receive() == messages
    assert receiver.receive() == [] and receiver.ended
    receiver.close()


def test_a_slow_reader_makes_no_sender_wait(pair: Pair) -> None:
    sender, receiver = pair
    messages = [random.randbytes(random.randrange(1, 1 << 20)) for _ in range(20)]
    begin = time.monotonic()
    for message in messages:
        sender.send(message)
    assert time.monotonic() - begin < 20 and sender.has_backlog
    found: list[bytes] = []
    while len(found) < len(messages):
        sender.flush()
        found += receiver.receive()
    assert found == messages and not sender.has_backlog


def test_a_backlog_is_announced_once() -> None:
    left, right = socket.socketpair()
    calls: list[int] = []
    sender = Connection(left, lambda: calls.append(1))
    sender.send(b"small")
    assert not calls
    sender.send(bytes(1 << 22))
    sender.send(b"more")
    assert len(calls) == 1
    right.close()
    sender.close()


def test_fetch_waits_for_one_message(pair: Pair) -> None:
    sender, receiver = pair
    assert receiver.fetch(0.01) is None
    threading.Timer(0.05, lambda: (sender.send(b"a"), sender.send(b"b"))).start()
    assert receiver.fetch(60) == b"a"
    assert receiver.fetch(60) == b"b"
    sender.send(b"c")
    sender.close()
    assert receiver.fetch(60) == b"c"
    assert receiver.fetch(60) is None and receiver.ended


def test_an_end_that_has_gone_is_noticed(pair: Pair) -> None:
    sender, receiver = pair
    receiver.close()
    sender.send(b"x" * 100)  # must not raise
    assert sender.receive() == [] and sender.ended
    sender.send(b"y")


@pytest.mark.parametrize("limit", ["MAX_MESSAGE_BYTES", "MAX_BACKLOG_BYTES"])
def test_limits_end_the_connection(pair: Pair, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = pair
    monkeypatch.setattr(connection, limit, 1000)
    if limit == "MAX_MESSAGE_BYTES":
        sender.send(bytes(1001))
        assert receiver.receive() == [] and receiver.ended
    else:
        for _ in range(100):
            sender.send(bytes(1 << 16))
        assert sender.ended
