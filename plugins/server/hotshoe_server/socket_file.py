"""A unix socket for as long as a server lives: who is killed removes no file.

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

from hotshoe.engine.wire.children import ChildProcess, Times, channel_to_owner
from hotshoe.engine.wire.connection import Connection
from hotshoe.errors import ConfigError
from hotshoe_server.sockets import open_unix, remove_dead

COMMAND = (sys.executable, "-P", "-m", "hotshoe_server.socket_file")


@dataclass(frozen=True, slots=True)
class Listening:
    """A listening socket, and what whoever answers on it holds open: its end tells the keeper.

    A port has no file, so it has no keeper and no lifeline.
    """

    listener: socket.socket
    lifeline: Connection | None = None

    @property
    def descriptors(self) -> list[int]:
        """Return those of all that is held open, the listening socket's first."""
        held = (self.listener, self.lifeline)
        return [one.fileno() for one in held if one is not None]


@contextlib.contextmanager
def unix_socket(option: str, path: str | None, private: bool = True) -> Iterator[Listening | None]:
    """Listen on a path for as long as the context lasts; without one, do nothing.

    Args:
        option: The flag that names the path.
        path: Of the socket's file.
        private: As in `open_unix`.

    Raises:
        ConfigError: As for `open_unix`.
    """
    if path is None:
        yield None
        return
    keeper = ChildProcess(COMMAND, [path])  # first, so that there is no file without a keeper
    try:
        with open_unix(option, path, private) as listener:
            try:
                yield Listening(listener, keeper.connection)
            finally:
                Path(path).unlink(missing_ok=True)
    finally:
        keeper.kill()  # who has nothing to do any more
        keeper.wait(Times().killed_s)
        keeper.connection.close()


def main() -> int:
    """Wait for the end of the lifeline, then remove the file; the command line names both."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the server's affair, who ends after them
        signal.signal(number, signal.SIG_IGN)
    channel_to_owner().fetch()
    path = sys.argv[2]
    with contextlib.suppress(ConfigError, OSError):  # it is another server's, or gone already
        remove_dead("", Path(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
