"""Every exception that Hotshoe raises on purpose, drawn as one tree.

    HotshoeError
    ├── UserError                 the caller can mend it: command line exit code 2, HTTP 4xx
    │   ├── ConfigError           an option or a combination of options
    │   ├── RequestError          one request's prompt or parameters; other requests go on
    │   ├── QueueFullError        too many requests wait; come back later (HTTP 429)
    │   ├── CheckpointError       a model directory: missing, truncated, mis-shaped, unknown
    │   ├── PluginError           a plugin: unknown, broken, duplicate, wrong API version
    │   ├── PlatformError         a platform: unknown, absent, broken
    │   ├── SelectionError        no candidate for a slot, or a forced one that refuses
    │   ├── KVTransferError       KV blocks of another engine that this one's cache cannot take
    │   └── MemoryLimitError      weights or KV cache do not fit; checked before allocation
    └── EngineError               the engine's own failure: exit code 1, HTTP 5xx
        └── EngineDeadError       the engine has stopped; every pending request gets this

A message says what is wrong, with which value, and what to do. Programmer errors stay asserts.
Foreign code may raise anything at all, and try to end the process: whoever calls it and has to go
on catches `BaseException`, but lets `KeyboardInterrupt` pass, which is the user's.
"""

import errno
import sys


class HotshoeError(Exception):
    """Root of every deliberate exception."""


class UserError(HotshoeError):
    """The caller's mistake, mendable by the caller."""


class ConfigError(UserError, ValueError):
    """An option has a bad value, or two options contradict each other."""


class RequestError(UserError, ValueError):
    """One request is malformed. `field` names the offending parameter."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class QueueFullError(UserError):
    """Too many requests wait. `retry_after_s` estimates when there will be room."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CheckpointError(UserError):
    """A model directory cannot be used."""


class PluginError(UserError):
    """A plugin cannot be used."""


class PlatformError(UserError):
    """A platform cannot be used."""


class SelectionError(UserError):
    """No implementation of a slot is usable here."""


class MemoryLimitError(UserError):
    """Something would not fit into the memory that the platform reports."""


class KVTransferError(UserError):
    """KV blocks of another engine cannot be taken over. `field` names what stands against it."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class EngineError(HotshoeError):
    """The engine failed; not the caller's fault."""


class EngineDeadError(EngineError):
    """The engine has stopped and takes no more requests."""


def lack_of(error: BaseException) -> UserError | None:
    """Say what this machine lacks for a process of ours to start, where that is the error's cause.

    Threads, folders and processes are started in many places, also by libraries; whoever reports
    an error to the user asks here first.
    """
    said = str(error)
    if isinstance(error, OSError) and "No usable temporary directory" in said:
        return ConfigError(
            "there is no folder for temporary files, where sockets lie: mount a writable one, such "
            "as /tmp, or name it in TMPDIR"
        )
    if "can't start new thread" in said or "ThreadPoolBuildError" in said:
        return ConfigError(
            "the system lets no further thread start: raise the user's limit on processes "
            "(ulimit -u) or the container's (pids)"
        )
    cause: BaseException | None = error  # libraries stumble over what follows, and raise that
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            return ConfigError(
                "the system opens no further file for this process: raise the limit on open files "
                "(ulimit -n) to 1024 or more"
            )
        cause = cause.__cause__ or cause.__context__
    denied = isinstance(error, (PermissionError, FileNotFoundError))
    if denied and getattr(error, "filename", None) == sys.executable:
        return ConfigError(
            f"processes of the engine are run by {sys.executable}, which this user may not run or "
            "which is gone: mend its permissions and those of its folders"
        )
    return None
