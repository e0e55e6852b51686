"""What a client asks for, and how a fork becomes that."""

from __future__ import annotations

import io
import os
import resource
import signal
import socket
import sys
from dataclasses import dataclass

import msgspec

from hotshoe.cli.keeper.client import ANSWER_S, GO, LENGTH_BYTES, READY, SIGNALS

#: What an engine process runs.
ENGINE = "hotshoe.engine.transport.child"
#: The system lets no process have more of arguments and environment.
MOST_BYTES = 8 << 20


class Wanted(msgspec.Struct):
    """What a client sends, beside its standard streams; see `client._wanted`."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    path: list[str]
    mask: int
    ignored: list[int]
    limits: dict[int, tuple[int, int]]


@dataclass(slots=True)
class Request:
    """A command line that this process shall run.

    Attributes:
        variables: To be set beside those of the client.
    """

    wanted: Wanted
    variables: dict[str, str]

    def run(self) -> int:
        """Become what was asked for; return the exit code."""
        for number in SIGNALS:
            ignored = number in self.wanted.ignored
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        if signal.SIGINT not in self.wanted.ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        environment = os.environ  # noqa: TID251 - handed on, not read
        environment.clear()
        environment.update(self.wanted.environment | self.variables)
        sys.argv, sys.path[:] = self.wanted.words, self.wanted.path
        if (numbers := sys.modules.get("numpy.random")) is not None:
            numbers.seed()  # else all forks drew the same; Python sees to its own
        from hotshoe.cli.__main__ import begin, run_here
        from hotshoe.engine.wire.children import BLOCKED
        from hotshoe.engine.wire.spares import fork_spare

        if self.wanted.words[1:2] == ["serve"]:
            role = fork_spare(ENGINE, BLOCKED)
            if role is not None:
                return role.run()
        return run_here(begin())


def receive(connection: socket.socket) -> Request | None:
    """Take what a client wants over, as far as the system has to allow it; None if it goes.

    Raises:
        OSError, ValueError: It cannot be.
    """
    connection.settimeout(ANSWER_S)
    length = int.from_bytes(_exactly(connection, LENGTH_BYTES))
    if length > MOST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    wanted = msgspec.json.decode(_exactly(connection, length), type=Wanted)
    for number, limits in wanted.limits.items():
        resource.setrlimit(number, limits)
    os.umask(wanted.mask)
    os.chdir(wanted.folder)
    connection.sendall(READY)
    word, streams, _, _ = socket.recv_fds(connection, len(GO), 3)
    if word != GO or len(streams) != 3:
        return None
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    connection.setblocking(True)
    _open_streams()
    return Request(wanted, {})


def _exactly(connection: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = connection.recv(length - len(found))
        if not part:
            raise ValueError("the client has gone")
        found += part
    return bytes(found)


def _open_streams() -> None:
    """Open the standard streams as a start of Python does."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, f"__{name}__")
        names = ("encoding", "errors", "write_through")
        options = {name: getattr(before, name) for name in names} if before else {}
        raw = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115 - for good
        at_once = number == 2 or raw.isatty()
        stream = io.TextIOWrapper(raw, line_buffering=at_once, **options)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
