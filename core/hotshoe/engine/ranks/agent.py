"""Runs ranks on this host for an engine on another one: their processes, and the way to them.

When the connection to the engine ends, however that comes, so do the ranks.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import tempfile
import time
from pathlib import Path

from hotshoe.engine.ranks.agent_messages import (
    Begin,
    FromRank,
    Gone,
    Hello,
    ToRank,
    decode_to,
    encode,
)
from hotshoe.engine.ranks.processes import ProcessGroup
from hotshoe.engine.wire.connection import Connection
from hotshoe.engine.wire.handshake import greet
from hotshoe.engine.wire.messages import Side
from hotshoe.errors import EngineError

RETRY_S = 0.5
LOOK_S = 0.5
#: An end that says nothing is asked after a second, and counts as gone after three more.
KEEPALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 4000}


class Agent:
    """One host's part of an engine.

    Args:
        sock: Connected to the engine core, which has been greeted.
        node: Its number.
    """

    def __init__(self, sock: socket.socket, node: int) -> None:
        watch(sock)
        own = sock.getsockname()[0]
        self._directory = tempfile.mkdtemp(prefix="hotshoe-ranks-")
        self._group: ProcessGroup | None = None
        self._first_rank: int | None = None
        self._connection = Connection(sock)
        address = f"{own}:{free_port(own)}"
        hello = Hello(Side(), node, host_identity(), self._directory, address, os.getpid())
        self._say(hello)

    def run(self) -> None:
        """Serve until the engine core ends the ranks or goes."""
        try:
            while not self._connection.ended and self._turn():
                pass
        finally:
            if self._group is not None:
                self._group.stop()
            shutil.rmtree(self._directory, ignore_errors=True)
            self._connection.close()

    def _turn(self) -> bool:
        """Pass on what is there; False at the end."""
        with selectors.DefaultSelector() as selector:
            writing = selectors.EVENT_WRITE if self._connection.has_backlog else 0
            selector.register(self._connection, selectors.EVENT_READ | writing)
            if self._group is not None:
                selector.register(self._group, selectors.EVENT_READ)
            selector.select(LOOK_S)
        self._connection.flush()
        for message in self._connection.receive():
            if not self._obey(message):
                return False
        if self._group is not None:
            for rank, said in self._group.receive(0):
                if said is None:
                    self._say(Gone(rank, self._group.ending(rank)))
                else:
                    self._say(FromRank(rank, said))
        return True

    def _obey(self, message: bytes) -> bool:
        command = decode_to(message)
        if isinstance(command, ToRank):
            assert self._group is not None
            self._group.send(command.rank, command.message)
        elif isinstance(command, Begin):
            self._begin(command)
        else:
            if self._group is not None:
                self._group.stop(command.leave_s)
            return False
        return True

    def _begin(self, command: Begin) -> None:
        self._first_rank = command.first
        numbers = range(command.first, command.first + len(command.messages))
        if command.directory != self._directory:  # nobody would remove it if this were killed
            shutil.rmtree(self._directory, ignore_errors=True)
        self._group = ProcessGroup(command.size, numbers, directory=command.directory)
        try:
            self._group.start(lambda seat: command.messages[seat.rank - command.first])
        except EngineError as error:
            self._say(Gone(command.first, f"cannot be started: {error}"))

    def _say(self, news: Hello | FromRank | Gone) -> None:
        self._connection.send(encode(news))


def join_engine(host: str, port: int, secret: bytes, node: int, limit_s: float) -> None:
    """Connect to an engine core, wait until it is there, and run the ranks that it wants here.

    Raises:
        EngineError: It does not come in time, or has another secret.
    """
    deadline = time.monotonic() + limit_s
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=RETRY_S)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"no engine came to {host}:{port} within {limit_s:g} s: {error}"
                ) from None
            time.sleep(RETRY_S)
    with sock:
        greet(sock, secret, listens=False)
        Agent(sock, node).run()


def watch(sock: socket.socket) -> None:
    """Notice within seconds that the other end's host has gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def free_port(host: str) -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def host_identity() -> str:
    """Name what processes share that see each other and the same files."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("mnt", "pid")]
    except OSError:
        return socket.gethostname()
    return f"{boot}-{spaces[0]}-{spaces[1]}"
