"""Asks a keeper to run a command line, and stands in for the process that runs it.

Signals go there, its exit code comes back. Where no keeper is, one that differs, or one that does
not answer, the command starts as ever. Imports little: every start waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hotshoe.cli.keeper import place

#: Between two messages of a keeper's process until the command starts.
ANSWER_S = 3.0
#: What a fork says when it can become what was asked for, and hears, with streams, when it shall.
READY, GO = b"r", b"g"
#: Handed on to the process that runs the command.
SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
#: On the wire: of a message's length, and of an exit code.
LENGTH_BYTES = CODE_BYTES = 4


def run_forked(words: Sequence[str]) -> int | None:
    """Run a command line by a keeper; return its exit code, None if it has to run here.

    A process that a signal has ended ends this one by the same signal.
    """
    asked = words and (words[0] in place.COMMANDS or " ".join(words[:2]) in place.COMMANDS)
    if not asked or not place.is_private(folder := place.folder()) or not _has_streams():
        return None
    name = place.digest()
    for path in sorted(folder.glob(f"{name}*")):
        with socket.socket(socket.AF_UNIX) as connection:
            if _begin(connection, path, words):
                return _stand_in(connection)
    return None


def _has_streams() -> bool:
    try:
        for number in range(3):
            os.fstat(number)
    except OSError:
        return False
    return True


def _begin(connection: socket.socket, path: Path, words: Sequence[str]) -> bool:
    """Ask; return whether the command runs."""
    connection.settimeout(ANSWER_S)
    try:
        connection.connect(str(path))
        if not place.is_own(connection):
            return False
        message = json.dumps(_wanted(words)).encode()
        connection.sendall(len(message).to_bytes(LENGTH_BYTES) + message)
        if connection.recv(1) != READY:
            return False
        # Not before: who reads what is printed would wait for a keeper that is stopped, too.
        socket.send_fds(connection, [GO], [0, 1, 2])
    except OSError:
        return False
    return True


def _wanted(words: Sequence[str]) -> dict[str, object]:
    """Return what a process has to take over to be what this one is."""
    import resource

    limits = {n: getattr(resource, n) for n in dir(resource) if n.startswith("RLIMIT_")}
    mask = os.umask(0o077)
    os.umask(mask)
    ignored = [n for n in SIGNALS if signal.getsignal(n) is signal.SIG_IGN]
    return {
        "words": [sys.argv[0], *words],
        "environment": dict(os.environ),  # noqa: TID251 - handed on, not read
        "folder": str(Path.cwd()),
        "path": sys.path,
        "mask": mask,
        "ignored": ignored,
        "limits": {number: resource.getrlimit(number) for number in set(limits.values())},
    }


def _stand_in(connection: socket.socket) -> int:
    """Hand signals on until the process ends; return its exit code."""
    connection.setblocking(False)
    code = b""
    with _handed_on(connection):
        while len(code) < CODE_BYTES:
            select.select([connection], [], [])
            with contextlib.suppress(BlockingIOError):
                part = connection.recv(CODE_BYTES - len(code))
                if not part:
                    print("hotshoe: error: the process that ran this was lost", file=sys.stderr)
                    return 1
                code += part
    found = int.from_bytes(code, signed=True)
    if found < 0:
        with contextlib.suppress(OSError, ValueError):  # some have no handler
            signal.signal(-found, signal.SIG_DFL)
        os.kill(os.getpid(), -found)
    return found


@contextlib.contextmanager
def _handed_on(connection: socket.socket) -> Iterator[None]:
    """Let Python write the numbers of signals into a connection."""
    heeded = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: None) for number in heeded}
    signal.set_wakeup_fd(connection.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
