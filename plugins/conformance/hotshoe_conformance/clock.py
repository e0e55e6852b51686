"""A run's time: where it is, said now and then, and when no more cases are to be started."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A run that is done sooner says nothing; a longer one says so often where it is.
SAY_EVERY_S = 10.0


class Clock:
    """Starts when it is made.

    Args:
        limit_s: Of the run; None for none.
        say: Takes a line.
    """

    def __init__(self, limit_s: float | None, say: Callable[[str], None]) -> None:
        self._begin = self._said = time.monotonic()
        self._limit_s, self._say = limit_s, say
        self._deadline_s = limit_s

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._begin

    @property
    def over(self) -> bool:
        """Tell whether the share that was given last is used up."""
        return self._deadline_s is not None and self.seconds > self._deadline_s

    @property
    def reason(self) -> str:
        """Why what is left is left out."""
        return f"the time limit of {self._limit_s:g} s"

    def late(self, left_out: dict[str, int], what: str) -> bool:
        """Tell whether it is too late to begin one more of something, which is counted then."""
        if self.over:
            key = f"{what}: {self.reason}"
            left_out[key] = left_out.get(key, 0) + 1
        return self.over

    def share_of(self, parts: int) -> None:
        """Let one of so many parts begin: it may take its share of what is left."""
        if self._limit_s is not None:
            now = self.seconds
            self._deadline_s = now + max(self._limit_s - now, 0.0) / parts

    def say(self, where: str) -> None:
        """Say where the run is, if it is time to."""
        now = time.monotonic()
        if now - self._said >= SAY_EVERY_S:
            self._said = now
            self._say(f"{self.seconds:.0f} s: {where}")
