"""The one guard around foreign code: plugins, kernels and libraries, which may raise anything.

A library may call `sys.exit`, and one in Rust may panic, so no guard for `Exception` is enough.
A guard never holds up the user's own interruption.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from contextlib import ContextDecorator
from pathlib import Path
from types import TracebackType

_CORE = f"{Path(__file__).parent}{os.sep}"
HINTS = {"SIGBUS": ", perhaps because a file that it reads was cut short or overwritten"}


class ForeignError(Exception):
    """Foreign code raised an exception, its `__cause__`; the text is the cause on one line.

    It is for those who turn the failure into a value, and never leaves the function that guards.
    """


def cause_of(error: BaseException) -> str:
    """Return what an exception is and says, on one line, as tables and messages want it."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def place_of(error: BaseException) -> str:
    """Return " at FILE:LINE" of the deepest code outside of core that an exception came through,
    "" if there was none."""
    places = [
        f" at {frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((_CORE, "<"))
    ]
    return places[-1] if places else ""


def ending(code: int) -> str:
    """Say how a process ended, by the return code that `Popen` gives it."""
    if code >= 0:
        return f"exit code {code}"
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    return f"killed by {name}{HINTS.get(name, '')}"


def _failed(error: BaseException) -> BaseException:
    return ForeignError(cause_of(error))


class foreign(ContextDecorator):  # noqa: N801 - used like a function
    """Guard foreign code in a block or a function; one object may guard many times.

    Args:
        owner: Makes the exception that names the owner of the code, from the exception that the
            code raised. If it returns that one, this goes on as it is. Default: `ForeignError`.
        passing: Exceptions that are meant for the caller and pass untouched, beside
            KeyboardInterrupt.

    Raises:
        BaseException: The one that `owner` made, with the original as its cause.
    """

    def __init__(
        self,
        owner: Callable[[BaseException], BaseException] = _failed,
        passing: tuple[type[BaseException], ...] = (),
    ) -> None:
        self._owner = owner
        self._passing: tuple[type[BaseException], ...] = (KeyboardInterrupt, *passing)

    def __enter__(self) -> None:
        """Begin; there is nothing to prepare, so that a guard costs little in each step."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, self._passing):
            return
        blamed = self._owner(error)
        try:
            if blamed is not error:
                raise blamed from error
        finally:
            del blamed  # else it would hold its own traceback, and so the tensors of its frames
