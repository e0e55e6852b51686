"""The engine's end of the socket: strangers and other versions are sent away."""

import asyncio
import socket
from pathlib import Path

import pytest

from hotshoe import AsyncEngine
from hotshoe.engine.wire.connection import Connection
from hotshoe.engine.wire.messages import Dead, Hello, Side, decode_news, encode


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x05\0\0\0hello", b"\xff" * 4])
def test_strangers_are_sent_away(served: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(served))
        stranger.sendall(data)
        stranger.settimeout(60)
        while stranger.recv(4096):
            pass
    engine = AsyncEngine.connect(served)
    assert asyncio.run(engine.stats()).num_running == 0
    engine.close()


def test_front_ends_of_another_version_are_told(served: Path) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(served))
    connection = Connection(sock)
    connection.send(encode(Hello(Side("9.9", 99))))
    answer = decode_news(connection.fetch(60))
    assert isinstance(answer, Dead) and "9.9" in answer.error.message
    connection.close()
