"""The engine loop's port over a unix socket, for front ends in other processes.

The socket lies in a folder that only its user can enter; several front ends may connect.
`socket_link` is the other end.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
from pathlib import Path

from hotshoe.engine.wire.connection import Connection, Waker
from hotshoe.engine.wire.messages import (
    UNREADABLE,
    Command,
    Dead,
    Heartbeat,
    News,
    Resting,
    decode_command,
    encode,
    not_understood,
)
from hotshoe.errors import ConfigError

BACKLOG_CONNECTIONS = 128


class SocketPort:
    """The engine's side; see `hotshoe.engine.transport.loop.Port`.

    Args:
        path: Where to listen.
        owner: The channel to the process that started this one; it gets signs of life, and
            hears who sleeps.

    Raises:
        ConfigError: Another engine listens there, or the path cannot be used.
    """

    def __init__(self, path: Path, owner: Connection | None = None) -> None:
        self._path = path
        self._owner = owner
        self._waker = Waker()
        self._listener = _listen(path)
        self._peers: dict[int, Connection] = {}
        self._next_number = 1
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._waker, selectors.EVENT_READ, self._waker.clear)

    def receive(self, timeout_s: float) -> list[tuple[int, Command | None]]:
        found: list[tuple[int, Command | None]] = []
        for key, events in self._selector.select(timeout_s):
            if not isinstance(key.data, int):
                key.data()
                continue
            if events & selectors.EVENT_WRITE:
                self._peers[key.data].flush()
            if events & selectors.EVENT_READ:
                found += self._read(key.data)
        for number, peer in self._peers.items():
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.has_backlog else 0)
            if self._selector.get_key(peer).events != events:
                self._selector.modify(peer, events, number)
        return found

    def send(self, peer: int, news: News) -> None:
        connection = self._peers.get(peer)
        if connection is not None:
            connection.send(encode(news))

    def broadcast(self, news: News) -> None:
        message = encode(news)
        if self._owner is not None and isinstance(news, (Heartbeat, Resting, Dead)):
            self._owner.send(message)
        for peer in list(self._peers.values()):
            peer.send(message)

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        """Close everything and remove the socket."""
        for peer in self._peers.values():
            peer.close()
        self._selector.close()
        self._listener.close()
        self._waker.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it has gone already, or there are too many open files
            return
        number = self._next_number
        self._next_number += 1
        self._peers[number] = Connection(sock, self.wake)
        self._selector.register(self._peers[number], selectors.EVENT_READ, number)

    def _read(self, number: int) -> list[tuple[int, Command | None]]:
        peer = self._peers[number]
        found: list[tuple[int, Command | None]] = []
        try:
            found += [(number, decode_command(message)) for message in peer.receive()]
        except UNREADABLE as error:  # another version, or not a front end at all
            peer.send(encode(Dead(not_understood(error))))
            peer.ended = True
        if peer.ended:
            self._selector.unregister(peer)
            del self._peers[number]
            peer.close()
            found.append((number, None))
        return found


def _listen(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        _bind(sock, path)
        sock.listen(BACKLOG_CONNECTIONS)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def _bind(sock: socket.socket, path: Path) -> None:
    """Bind; take the place of a socket that nobody listens at."""
    try:
        sock.bind(str(path))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            why = error.strerror or error
            raise ConfigError(f"cannot make a socket at {path}: {why}") from error
        if not path.is_socket() or _is_served(path):
            raise ConfigError(f"{path} is taken; another engine listens there") from error
        path.unlink()
        sock.bind(str(path))


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(str(path)) != errno.ECONNREFUSED
