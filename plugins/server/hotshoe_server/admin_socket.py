"""The admin socket for as long as a server lives: who is killed removes no file.

So a keeper, a process that does nothing else, waits until nobody serves the socket any more, and
removes the file then. It is this module, run as a program.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hotshoe.engine.wire.spawn import spawn
from hotshoe.errors import ConfigError
from hotshoe_server.sockets import open_unix, remove_dead

COMMAND = (sys.executable, "-P", "-m", "hotshoe_server.admin_socket")


@dataclass(frozen=True, slots=True)
class AdminSocket:
    """A listening socket, and what whoever answers on it holds open: its end tells the keeper."""

    listener: socket.socket
    lifeline: socket.socket


@contextlib.contextmanager
def admin_socket(path: str | None) -> Iterator[AdminSocket | None]:
    """Listen on a path for as long as the context lasts; without one, do nothing.

    Raises:
        ConfigError: As for `open_unix`.
    """
    if path is None:
        yield None
        return
    keeper, lifeline = spawn(COMMAND, [path])  # first, so that there is no file without a keeper
    try:
        with lifeline, open_unix(path) as listener:
            try:
                yield AdminSocket(listener, lifeline)
            finally:
                Path(path).unlink(missing_ok=True)
    finally:
        keeper.kill()  # who has nothing to do any more
        keeper.wait()


def main() -> int:
    """Wait for the end of the lifeline, then remove the file; the command line names both."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the server's affair, who ends after them
        signal.signal(number, signal.SIG_IGN)
    lifeline, path = sys.argv[1:]
    with socket.socket(fileno=int(lifeline)) as theirs:
        theirs.recv(1)
    with contextlib.suppress(ConfigError, OSError):  # it is another server's, or gone already
        remove_dead(Path(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
