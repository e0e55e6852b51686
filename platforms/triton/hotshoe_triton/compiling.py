"""Processes that compile kernels into the folder where Triton keeps them.

To read a kernel's source is Python's work, for which threads take turns. A process of its own needs
neither PyTorch nor the device: it is told what to compile for, by Triton's own description of a
kernel. Whoever wants the kernel finds it in the folder then.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from hotshoe.engine.wire.children import ChildProcess, Times, channel_to_owner, when_orphaned

COMMAND = (sys.executable, "-P", "-m", "hotshoe_triton.compiling")
DONE = b"done"
#: Packages named so have kernels of ours. A rehearsal launches others as ever: a tuner among them
#: would time nothing.
OWN = "hotshoe_"
TIMES = Times()
#: In Triton's folder, empty: its bytes are locked, though it has none.
TURNS = "hotshoe-turns"
#: `struct flock` of <fcntl.h>: type, whence, start, length, and a process, which stays 0.
FLOCK = "hhqqi4x"


class Driver:
    """Stands for a device that is not here."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        """Return what to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Return a device that is never used."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return a stream that is never used."""
        return 0


def settle(kernel: JITFunction) -> None:
    """Give a kernel its key, after those functions that it calls have theirs.

    Triton's key has the constants of a called function only where that has a key already. So it
    would depend on the order in which kernels are met.
    """
    for name in kernel.fn.__code__.co_names:
        called = kernel.__globals__.get(name)
        if isinstance(called, JITFunction) and called is not kernel:
            settle(called)
    _key = kernel.cache_key


def settle_all() -> None:
    """Give all kernels of ours their keys whose modules are imported."""
    for module in [m for name, m in sys.modules.items() if name.startswith(OWN)]:
        for found in list(vars(module).values()):
            if isinstance(found, JITFunction):
                settle(found)


class Compiler:
    """One process, which compiles for the device that Triton has now.

    Raises:
        OSError: The system lets no process start.
    """

    def __init__(self) -> None:
        target, launcher = driver.active.get_current_target(), driver.active.launcher_cls
        named = (getattr(launcher, name, "") for name in ("__module__", "__qualname__"))
        self._child = ChildProcess(COMMAND)
        self._tell(target.backend, target.arch, target.warp_size, str(knobs.cache.dir), *named)

    def compile(self, kernel: JITFunction, specialization: str) -> None:
        """Have a kernel compiled, and wait. If it cannot be, whoever compiles it next will see."""
        self._tell(kernel.fn.__module__, kernel.fn.__qualname__, specialization)
        self._child.connection.fetch()

    def end(self) -> None:
        """End the process, whatever it does."""
        self._child.kill()
        self._child.wait(TIMES.killed_s)
        self._child.connection.close()

    def _tell(self, *words: Any) -> None:
        self._child.connection.send(json.dumps(words).encode())


class Turns:
    """Which of the processes that want a kernel compiles it: one at a time, of all on this host.

    Each kernel has a byte of one file, which a process locks through an opened file of its own. A
    lock goes with its process. Where the folder takes no locks, everybody compiles.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):
            folder = Path(knobs.cache.dir)
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / TURNS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, kernel: JITFunction, specialization: str, wait: bool = False) -> bool:
        """Take the turn to compile a kernel; return whether nobody else has it.

        Args:
            wait: Until nobody has it.
        """
        how = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        try:
            self._lock(how, fcntl.F_WRLCK, kernel, specialization)
        except BlockingIOError:
            return False
        except OSError:  # no locks here
            return True
        return True

    def leave(self, kernel: JITFunction, specialization: str) -> None:
        """Let others have a kernel's turn."""
        with suppress(OSError):
            self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, kernel, specialization)

    def end(self) -> None:
        """Leave all turns."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _lock(self, how: int, kind: int, kernel: JITFunction, specialization: str) -> None:
        if self._file is not None:
            name = hashlib.sha256((kernel.cache_key + specialization).encode()).digest()
            place = int.from_bytes(name[:8]) >> 2  # far from the end of what offsets count
            fcntl.fcntl(self._file, how, struct.pack(FLOCK, kind, os.SEEK_SET, place, 1, 0))


def main() -> None:
    """Compile what the owner of this process names, until it has gone."""
    channel = channel_to_owner()
    when_orphaned(channel, partial(os._exit, 0))
    launcher: Callable[..., Any] | None = None
    if (message := channel.fetch()) is not None:
        *target, folder, module, name = json.loads(message)
        driver.set_active(Driver(GPUTarget(*target)))
        knobs.cache.dir = folder
        with suppress(ImportError, AttributeError, ValueError):
            launcher = getattr(importlib.import_module(module), name)
    while (message := channel.fetch()) is not None:
        with suppress(Exception):  # whoever wants the kernel will see it, too
            _compile(*json.loads(message), launcher)
        channel.send(DONE)


def _compile(
    module: str, name: str, specialization: str, launcher: Callable[..., Any] | None
) -> None:
    """Compile one kernel, and what launches it as far as that needs no device."""
    kernel = getattr(importlib.import_module(module), name)
    settle(kernel)
    found = kernel.preload(specialization)
    if launcher is not None:
        launcher(found.src, found.metadata)


if __name__ == "__main__":
    main()
