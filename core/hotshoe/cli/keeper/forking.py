"""The keeper's side: a socket, and a fork for each who asks.

A fork comes in two. One stays with the client: it hands signals on and tells the exit code. The
other becomes the command. So the keeper only accepts and forks, whatever a client does, and may end
before those that it has forked. A process may be forked while it has one thread and no device.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

from hotshoe.cli.keeper import place
from hotshoe.cli.keeper.client import CODE_BYTES, SIGNALS
from hotshoe.cli.keeper.files import LoadedFiles
from hotshoe.cli.keeper.request import Request, receive
from hotshoe.errors import ConfigError
from hotshoe.foreign import cause_of
from hotshoe.host import freeze


class ImportKeeper:
    """A process that others are forked from; call `close` in the end.

    Args:
        name: From `place.digest`, asked before anything was imported.
        environment: As it was then.

    Raises:
        ConfigError: No socket can be made.
    """

    def __init__(self, name: str, environment: dict[str, str]) -> None:
        now = os.environ  # noqa: TID251 - handed on, not read
        self._set = {k: v for k, v in now.items() if environment.get(k) != v}
        self._files = LoadedFiles()
        self._path, self._listener = _listen(name)
        self._owner = os.getpid()
        #: Written by Python when a signal comes, so that no signal comes between two looks.
        self._woken, waking = socket.socketpair()
        waking.setblocking(False)
        self._waking = waking
        freeze()

    def serve(self, end: Event, say: Callable[[str], None]) -> Request | None:
        """Fork for whoever asks, until an event, which a signal's handler sets.

        Args:
            end: The event.
            say: Tells people what happens.

        Returns:
            None in this process. In a process that was forked: what it has to become.
        """
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how forks end
        signal.set_wakeup_fd(self._waking.fileno())
        try:
            listening = [self._listener]
            while not end.is_set():
                ready, _, _ = select.select([*listening, self._woken], [], [])
                if self._woken in ready:
                    self._woken.recv(64)
                elif not self._files.are_unchanged():
                    say("imported files have changed; starts import again, until this one does")
                    listening.pop().close()
                elif (found := self._accept(say)) is not None:
                    return found
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, before)
        return None

    def close(self) -> None:
        """Take no more requests."""
        for one in (self._listener, self._woken, self._waking):
            one.close()
        if os.getpid() == self._owner:
            self._path.unlink(missing_ok=True)

    def _accept(self, say: Callable[[str], None]) -> Request | None:
        """Fork for one client; return what the fork has to become, None in this process."""
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone
            return None
        with connection:
            if not place.is_own(connection):
                return None
            sys.stdout.flush()
            sys.stderr.flush()
            try:
                forked = os.fork() == 0
            except OSError as error:
                say(f"nothing can be forked: {error}")
                return None
            return self._forked(connection, say) if forked else None

    def _forked(self, connection: socket.socket, say: Callable[[str], None]) -> Request:
        """Go on in the process that stays with a client; return in that which it asked for."""
        signal.set_wakeup_fd(-1)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        self.close()
        os.setsid()  # a terminal's keys are its own processes' affair, also whether they may read
        try:
            request = receive(connection)
            child = os.fork() if request is not None else 0
        except Exception as error:
            say(f"a command starts as ever: {cause_of(error)}")
            os._exit(1)
        if request is None:
            os._exit(0)
        if child:
            _stay(connection, child)
        connection.close()
        request.variables |= self._set
        return request


def _listen(name: str) -> tuple[Path, socket.socket]:
    """Return a socket of one's own in the user's folder, and where it is.

    Raises:
        ConfigError: The folder cannot be made, or others can enter it.
    """
    folder = place.folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not place.is_private(folder):
            raise ConfigError(f"{folder} must be a folder of yours that nobody else can enter")
        _remove_stale(folder)
        path = folder / f"{name}-{os.getpid()}{place.SUFFIX}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(8)
    except OSError as error:
        raise ConfigError(f"no socket can be made in {folder}: {error}") from None
    return path, listener


def _remove_stale(folder: Path) -> None:
    """Remove sockets whose keepers were killed."""
    for path in folder.glob(f"*{place.SUFFIX}"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue


def _stay(connection: socket.socket, child: int) -> None:
    """Hand a client's signals to its process, tell how that ended, and end."""
    watched = os.pidfd_open(child)
    heard = select.poll()
    heard.register(watched, select.POLLIN)
    heard.register(connection, select.POLLIN)
    while not any(number == watched for number, _ in heard.poll()):
        numbers = b""
        with contextlib.suppress(ConnectionResetError):
            numbers = connection.recv(64)
        for number in numbers or [signal.SIGKILL]:  # a client that was killed says no more
            if number in SIGNALS or not numbers:
                signal.pidfd_send_signal(watched, number)
        if not numbers:
            heard.unregister(connection)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        connection.sendall(code.to_bytes(CODE_BYTES, signed=True))
    os._exit(0)
