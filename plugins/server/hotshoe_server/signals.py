"""What SIGTERM and SIGINT do: end at once, then call a function of a loop, in the end nothing.

Handlers are replaced, never taken away, so that there is no moment in which a signal ends the
process in the midst of its work or its end.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ended(KeyboardInterrupt, SystemExit):
    """A SIGTERM came. No guard against foreign code takes it for the code's own wish to end."""

    code = 0


def end_at_sigterm() -> None:
    """End in good order at a SIGTERM, as long as nothing has been started."""
    signal.signal(signal.SIGTERM, _leave)


@contextmanager
def signals_call(function: Callable[[], None]) -> Iterator[None]:
    """Let signals call a function in the running loop; afterwards they do nothing any more."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(function))
    try:
        yield
    finally:
        ignore_signals()


def ignore_signals() -> None:
    """Do nothing any more: the process ends anyway, and says how; a signal would garble that."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: object) -> NoReturn:
    raise Ended
