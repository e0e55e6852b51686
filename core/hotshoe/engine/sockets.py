"""The engine loop's port and the front end's link over a unix socket.

The socket lies in a folder that only its user can enter. Several front ends may connect to one
engine. A front end whose engine has gone keeps trying to reach a new one at the same place.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from hotshoe.engine.boot import load_tokenizer
from hotshoe.engine.client import EngineInfo
from hotshoe.engine.connection import Connection
from hotshoe.engine.link import Listener
from hotshoe.engine.messages import (
    UNREADABLE,
    Command,
    Dead,
    Heartbeat,
    Hello,
    News,
    Side,
    Welcome,
    WireError,
    check_side,
    decode_command,
    decode_news,
    encode,
    not_understood,
)
from hotshoe.errors import ConfigError, EngineDeadError, EngineError
from hotshoe.text.tokenizer import Tokenizer

BACKLOG_CONNECTIONS = 128
CONNECT_S = 10.0
RETRY_S = 0.1


class _Waker:
    """Lets a thread that selects return."""

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)

    def fileno(self) -> int:
        return self._reading.fileno()

    def wake(self) -> None:
        try:
            self._writing.send(b".")
        except OSError:
            return  # full: it will wake up anyway; closed: nobody sleeps

    def clear(self) -> None:
        try:
            while self._reading.recv(4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        self._reading.close()
        self._writing.close()


class SocketPort:
    """The engine's side; see `hotshoe.engine.loop.Port`.

    Args:
        path: Where to listen.
        owner: The channel to the process that started this one; it gets signs of life.

    Raises:
        ConfigError: Another engine listens there, or the path cannot be used.
    """

    def __init__(self, path: Path, owner: Connection | None = None) -> None:
        self._path = path
        self._owner = owner
        self._waker = _Waker()
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
        if self._owner is not None and isinstance(news, (Heartbeat, Dead)):
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


class Owner(Protocol):
    """Who started the engine process, and may start another one."""

    @property
    def num_restarts(self) -> int: ...
    @property
    def is_over(self) -> bool:
        """No engine runs, and none will be started."""
        ...

    def cause(self) -> str:
        """Say how the last engine process ended, waiting a moment for it."""
        ...

    def close(self) -> None:
        """End the engine process."""
        ...


class SocketLink:
    """The front end's side; see `hotshoe.engine.link.Link`.

    Args:
        path: Where the engine listens.
        listener: Called from the link's own thread.
        owner: Who started the engine, if it was this process; closed with this link.
        tokenizer: On its way; default: loaded as the engine's description says.

    Raises:
        EngineError: No engine listens there.
        ConfigError: The engine is another version.
    """

    def __init__(
        self,
        path: Path,
        listener: Listener,
        owner: Owner | None = None,
        tokenizer: Future[Tokenizer | None] | None = None,
    ) -> None:
        self._path = path
        self._listener = listener
        self._owner = owner
        self._waker = _Waker()
        self._closed = threading.Event()
        self._num_found = 0
        self._connection: Connection | None = None
        try:
            self._connection, self.info = self._connect()
            if tokenizer is None:
                self.tokenizer = load_tokenizer(self.info.config, Path(self.info.model_path))
            else:
                self.tokenizer = tokenizer.result()
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="hotshoe-link", daemon=True)

    @property
    def num_restarts(self) -> int:
        return self._num_found if self._owner is None else self._owner.num_restarts

    def start(self) -> None:
        self._thread.start()

    def send(self, command: Command) -> None:
        assert self._connection is not None
        self._connection.send(encode(command))

    def close(self) -> None:
        self._closed.set()
        self._waker.wake()
        if self._owner is not None:
            self._owner.close()
        if self._thread.ident is not None:
            self._thread.join()
        self._release()

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._waker.close()

    def _connect(self) -> tuple[Connection, EngineInfo]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(CONNECT_S)
            sock.connect(str(self._path))
        except OSError as error:
            sock.close()
            raise EngineError(f"no engine listens at {self._path}: {error.strerror}") from error
        connection = Connection(sock, self._waker.wake)
        try:
            return connection, self._greet(connection)
        except BaseException:
            connection.close()
            raise

    def _greet(self, connection: Connection) -> EngineInfo:
        connection.send(encode(Hello(Side())))
        message = connection.fetch(CONNECT_S)
        try:
            answer = None if message is None else decode_news(message)
        except UNREADABLE as error:
            answer = Dead(not_understood(error))
        if isinstance(answer, Dead):
            raise answer.error.unwrap()
        if not isinstance(answer, Welcome):
            raise EngineError(f"the engine at {self._path} does not answer")
        check_side(Side(), answer.side)
        return answer.info

    def _run(self) -> None:
        while True:
            assert self._connection is not None
            self._pump(self._connection)
            self._connection.close()
            if self._closed.is_set():
                return
            cause = "it closed the connection" if self._owner is None else self._owner.cause()
            self._listener.on_lost(EngineDeadError(f"the engine process has died: {cause}"))
            if not self._reconnect():
                return

    def _pump(self, connection: Connection) -> None:
        """Hand on what comes until the engine or this link has gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._waker, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            self._hand_on(connection)  # what came along with the welcome
            while not (self._closed.is_set() or connection.ended):
                writing = selectors.EVENT_WRITE if connection.has_backlog else 0
                selector.modify(connection, selectors.EVENT_READ | writing)
                for key, events in selector.select():
                    if key.fileobj is self._waker:
                        self._waker.clear()
                    if events & selectors.EVENT_WRITE:
                        connection.flush()
                self._hand_on(connection)

    def _hand_on(self, connection: Connection) -> None:
        for message in connection.receive():
            try:
                news = decode_news(message)
            except UNREADABLE as error:
                news = Dead(WireError.wrap(EngineDeadError(not_understood(error).message)))
                connection.ended = True
            self._listener.on_news(news)

    def _reconnect(self) -> bool:
        """Wait for another engine; False when there will be none."""
        while not self._closed.wait(RETRY_S):
            if self._owner is not None and self._owner.is_over:
                return False
            try:
                self._connection, self.info = self._connect()
            except (EngineError, ConfigError):
                continue
            self._num_found += 1
            self._listener.on_found(self.info)
            return True
        return False


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
