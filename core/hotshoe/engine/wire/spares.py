"""Child processes that were made before they were wanted.

A process that was forked from a keeper of imports has imported what its children need as well, but
may not fork any more when it wants one. So it forks a spare at its start, while it has one thread
and no device. Without a keeper a spare is a new process (`children.started_ahead`), which imports
meanwhile. A spare waits to hear what to be. One that nobody wants ends with its owner.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hotshoe.engine.wire.connection import HEADER


class Process(Protocol):
    """What owners use of a process: of `ForkedProcess`, or of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def send_signal(self, number: int, /) -> None: ...


class ForkedProcess:
    """What owners use of `subprocess.Popen`, for a process that this one has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._watched = os.pidfd_open(pid)
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        with self._lock:
            if self.returncode is None:
                found, status = os.waitpid(self.pid, os.WNOHANG)
                if found:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end; return the exit code.

        Raises:
            TimeoutError: It runs on.
        """
        ended = select.poll()
        ended.register(self._watched, select.POLLIN)
        ended.poll(1000 * timeout)
        if (code := self.poll()) is None:
            raise TimeoutError
        return code

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by force."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


@dataclass(frozen=True, slots=True)
class Spare:
    """A process that waits, and the channel to it."""

    process: Process
    channel: socket.socket


@dataclass(frozen=True, slots=True)
class Role:
    """What a spare has to be: the `main` of a module, with a command line."""

    module: str
    words: list[str]

    def run(self) -> int:
        """Become that; return the exit code."""
        if not sys.flags.safe_path:
            del sys.path[:1]
        faulthandler.enable()
        sys.argv = [self.module, *self.words]
        code: int = importlib.import_module(self.module).main()
        return code


#: Those of this process, by the module that they wait for.
_SPARES: dict[str, list[Spare]] = {}


def fork_spare(module: str, blocked: Sequence[int]) -> Role | None:
    """Fork a process that waits to run a module; only while this one has a single thread.

    Args:
        module: With a function `main`, called without arguments.
        blocked: Signals that never reach the process.

    Returns:
        None in this process. In the other one, when it is wanted: what it has to be.
    """
    ours, theirs = socket.socketpair()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        keep_spare(module, Spare(ForkedProcess(pid), ours))
        return None
    ours.close()
    _SPARES.clear()
    os.setpgid(0, 0)
    _forget_handlers()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)  # what a command prints is its own
    words = hear(theirs)
    return Role(module, [str(theirs.detach()), *words])


def _forget_handlers() -> None:
    """Answer signals as a program does that has just been started."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            own = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, own)


def keep_spare(module: str, spare: Spare) -> None:
    """Hold a spare for a child that will run a module."""
    _SPARES.setdefault(module, []).append(spare)


def num_spares(module: str) -> int:
    """Return how many wait to run a module."""
    return len(_SPARES.get(module, ()))


def drop_spares(module: str) -> list[Process]:
    """End the spares of a module that nobody has wanted; return their processes."""
    spares = _SPARES.pop(module, [])
    for spare in spares:
        spare.channel.close()
        spare.process.kill()
    return [spare.process for spare in spares]


def module_of(command: Sequence[str]) -> str:
    """Return the module that a command of Python runs, "" if it names none."""
    return command[command.index("-m") + 1] if "-m" in command else ""


def take_spare(command: Sequence[str], arguments: Sequence[str]) -> Spare | None:
    """Let a spare run a command with arguments behind the channel's number; None: there is none."""
    waiting = _SPARES.get(module_of(command))
    spare = waiting.pop(0) if waiting else None
    if spare is None or spare.process.poll() is not None:
        return None
    message = json.dumps(list(arguments)).encode()
    spare.channel.sendall(HEADER.pack(len(message)) + message)
    return spare


def hear(channel: socket.socket) -> list[str]:
    """Wait for arguments; end this process where none come."""

    def exactly(count: int) -> bytes:
        found = b""
        while len(found) < count:
            if not (part := channel.recv(count - len(found))):
                os._exit(0)
            found += part
        return found

    words: list[str] = json.loads(exactly(*HEADER.unpack(exactly(HEADER.size))))
    return words
