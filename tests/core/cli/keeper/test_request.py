"""What a client wants is checked before it is done."""

import json
import socket

import pytest

from hotshoe.cli.keeper import request
from hotshoe.cli.keeper.client import LENGTH_BYTES


def hear(message: bytes, length: int | None = None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((len(message) if length is None else length).to_bytes(LENGTH_BYTES))
        theirs.sendall(message)
        theirs.shutdown(socket.SHUT_WR)
        request.receive(ours)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field"),
        (json.dumps({"words": 1}).encode(), "Expected `array`"),
    ],
)
def test_what_is_no_request_is_refused(message: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        hear(message)


def test_its_length_is_bounded_and_true(monkeypatch) -> None:
    with pytest.raises(ValueError, match="a message of 8388609 bytes"):
        hear(b"", request.MOST_BYTES + 1)
    with pytest.raises(ValueError, match="the client has gone"):
        hear(b"{}", 3)


def test_limits_that_this_process_may_not_have_are_refused(monkeypatch) -> None:
    def refuse(number: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(request.resource, "setrlimit", refuse)
    wanted = {"words": [], "environment": {}, "folder": "/", "path": [], "mask": 0, "ignored": []}
    with pytest.raises(ValueError, match="not allowed"):
        hear(json.dumps({**wanted, "limits": {"7": [10, 20]}}).encode())
