"""The host that this process runs on: memory, limits, and looks of Python for garbage."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")

_frozen = Event()
_ending = Event()


def physical_memory() -> int:
    """Return the bytes of memory that the host has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def granted_memory() -> int:
    """Return the bytes that this process may use: all, or what its control group allows."""
    total = physical_memory()
    try:
        limit = CGROUP_LIMIT.read_text(encoding="utf-8").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def freeze(look: bool = True) -> None:
    """Take all objects for staying: no look for cyclic garbage goes through them, so forks share
    their memory. Garbage goes first, if there may be some."""
    if look:
        gc.collect()
    gc.freeze()
    _frozen.set()


def end_with_command() -> None:
    """Say that this process runs one command and ends with it."""
    _ending.set()


def leave_garbage() -> None:
    """Let nothing look for cyclic garbage any more, if this process ends with its command, which is
    over: the system takes all memory back."""
    if _ending.is_set():
        gc.freeze()


def allow_open_files() -> None:
    """Let this process, and those that it starts, hold as many files and connections as they may.

    Systems give a process 1,024 at first, and leave it to the process to take more.
    """
    try:
        import resource
    except ImportError:  # where there are no such limits
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # some systems allow fewer than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def uncollected() -> Iterator[None]:
    """While active, let Python not look for cyclic garbage.

    A start makes a million objects that stay, and looking through them again and again takes most
    of the time in which a model is built. Garbage that is there goes first: it may hold memory.
    What was made meanwhile counts as old in the end, or the next look would go through all of it.
    """
    looks = gc.isenabled()
    if looks:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if looks and not _frozen.is_set():  # Python would count frozen objects one by one
            gc.freeze()
            gc.unfreeze()
        if looks:
            gc.enable()
