"""The front end's link to an engine process over its unix socket.

The link's thread connects, and reads until an event loop attends to the link; from then on the loop
reads, and the thread sends what the socket did not take at once and looks for a new engine at the
same place when the old one has gone. `socket_port` is the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from hotshoe.engine.client import EngineInfo
from hotshoe.engine.core.boot import load_tokenizer
from hotshoe.engine.transport.link import Listener
from hotshoe.engine.transport.mailbox import runs_here
from hotshoe.engine.wire.connection import Connection, Waker
from hotshoe.engine.wire.messages import (
    UNREADABLE,
    Command,
    Dead,
    Hello,
    Side,
    Welcome,
    WireError,
    check_side,
    decode_news,
    encode,
    not_understood,
)
from hotshoe.errors import ConfigError, EngineDeadError, EngineError
from hotshoe.text.tokenizer import Tokenizer

CONNECT_S = 10.0
RETRY_S = 0.1
LEAVE_S = 1.0


class Owner(Protocol):
    """Who started the engine process, and may start another one."""

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
    """The front end's side; see `hotshoe.engine.transport.link.Link`.

    Args:
        path: Where the engine listens.
        listener: Called from the link's own thread or the loop that attends.
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
        self._waker = Waker()
        self._closed = threading.Event()
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
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
    def is_over(self) -> bool:
        if self._owner is not None:
            return self._owner.is_over
        return not self._path.parent.exists()  # which the owner removes with the last engine

    def start(self) -> None:
        self._thread.start()

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waker.wake()

    def send(self, command: Command) -> None:
        assert self._connection is not None
        self._connection.send(encode(command))

    def close(self) -> None:
        self._closed.set()
        self._leave_loop()
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
        sock: socket.socket | None = None
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(CONNECT_S)
            sock.connect(str(self._path))
        except OSError as error:
            if sock is not None:  # else there are too many open files
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
        end_s = time.monotonic() + CONNECT_S
        while (left_s := end_s - time.monotonic()) > 0:
            message = connection.fetch(left_s)
            if message is None:
                break
            try:
                answer = decode_news(message)
            except UNREADABLE as error:
                answer = Dead(not_understood(error))
            if isinstance(answer, Dead):
                raise answer.error.unwrap()
            if isinstance(answer, Welcome):
                check_side(Side(), answer.side)
                return answer.info
            # Anything else was meant for everybody; what matters of it is said after the welcome.
        raise EngineError(f"the engine at {self._path} does not answer")

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
        """Hand on what comes, or let a loop do so, until the engine or this link has gone."""
        loop: asyncio.AbstractEventLoop | None = None
        with selectors.PollSelector() as selector:  # which needs no descriptor of its own
            selector.register(self._waker, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            self._hand_on(connection)  # what came along with the welcome
            while not (self._closed.is_set() or connection.ended):
                if self._loop is not None and loop is not self._loop:
                    loop = self._loop
                    self._read_in(loop, connection)
                reading = selectors.EVENT_READ if loop is None else 0
                writing = selectors.EVENT_WRITE if connection.has_backlog else 0
                _watch(selector, connection, reading | writing)
                for key, events in selector.select():
                    if key.fileobj is self._waker:
                        self._waker.clear()
                    if events & selectors.EVENT_WRITE:
                        connection.flush()
                if loop is None:
                    self._hand_on(connection)

    def _read_in(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        """Let a loop hand on what comes until the connection ends or another loop attends."""
        number = connection.fileno()

        def read() -> None:
            if self._loop is loop:
                self._hand_on(connection)
            if self._loop is not loop or connection.ended:
                loop.remove_reader(number)
                self._waker.wake()

        with contextlib.suppress(RuntimeError):  # it has been closed; the next one will read
            loop.call_soon_threadsafe(loop.add_reader, number, read)

    def _leave_loop(self) -> None:
        """Take the socket out of the loop, before it is closed."""
        loop, connection = self._loop, self._connection
        if loop is None or connection is None or loop.is_closed():
            return
        done = threading.Event()

        def leave() -> None:
            if connection.fileno() >= 0:
                loop.remove_reader(connection.fileno())
            done.set()

        if not loop.is_running() or runs_here(loop):
            leave()
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(leave)
            done.wait(LEAVE_S)

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
            self._listener.on_found(self.info)
            return True
        return False


def _watch(selector: selectors.BaseSelector, connection: Connection, events: int) -> None:
    """Let a selector wait for these events of a connection, or leave it out."""
    watched = connection in selector.get_map()
    if events and watched:
        selector.modify(connection, events)
    elif events:
        selector.register(connection, events)
    elif watched:
        selector.unregister(connection)
