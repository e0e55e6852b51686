"""Runs calls of a library that cannot be stopped on a thread, and waits for each only so long.

A call that takes longer keeps its thread for as long as it runs; another thread goes on with those
behind it. Threads that are kept so are few: beyond that no call is made until one comes free. The
library must release the interpreter's lock in its calls.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

#: A call takes microseconds; this long, the step of all other requests may wait for one.
LIMIT_S = 1.0
MAX_HELD = 4

Call = Callable[[], object]


class Apart:
    """Calls that are made one after another, on a thread that is none of the caller's.

    Args:
        limit_s: How long the caller waits for one call.
        max_held: How many calls that take longer may still run.
    """

    def __init__(self, limit_s: float = LIMIT_S, max_held: int = MAX_HELD) -> None:
        self._limit_s = limit_s
        self._max_held = max_held
        self._held: list[_Batch] = []
        self._batches: queue.SimpleQueue[_Batch] | None = None

    @property
    def limit_s(self) -> float:
        """How long the caller waits for one call."""
        return self._limit_s

    def __call__(self, calls: Sequence[Call]) -> list[object | None]:
        """Return what the calls returned, None for each that took too long or was not made.

        Raises:
            BaseException: What the first call that failed raised.
        """
        results: list[object | None] = [None] * len(calls)
        at = 0
        while at < len(calls) and self._free():
            batch = _Batch(calls, at, results)
            self._thread().put(batch)
            at = batch.wait(self._limit_s)
            if batch.failure is not None:
                raise batch.failure
            if at < len(calls):
                self._held.append(batch)
                self._batches = None
                at += 1
        return results

    def _free(self) -> bool:
        self._held = [batch for batch in self._held if not batch.ended.is_set()]
        return len(self._held) < self._max_held

    def _thread(self) -> queue.SimpleQueue[_Batch]:
        if self._batches is None:
            self._batches = queue.SimpleQueue()
            name = "hotshoe-grammar-calls"
            threading.Thread(target=_work, args=(self._batches,), name=name, daemon=True).start()
        return self._batches


class _Batch:
    """Calls from one place on; given up by the caller where one of them takes too long.

    Attributes:
        ended: Set when the thread is free again.
        failure: What a call raised.
    """

    def __init__(self, calls: Sequence[Call], begin: int, results: list[object | None]) -> None:
        self._calls = calls
        self._results = results
        self._lock = threading.Lock()
        self._at = begin
        self._since = time.monotonic()
        self.given_up = False
        self.ended = threading.Event()
        self.failure: BaseException | None = None

    def wait(self, limit_s: float) -> int:
        """Return the place of the call that took too long, or the number of calls."""
        while not self.ended.wait(max(0.0, self._since + limit_s - time.monotonic())):
            with self._lock:
                if time.monotonic() - self._since >= limit_s and self._at < len(self._calls):
                    self.given_up = True
                    return self._at
        return len(self._calls)

    def run(self) -> None:
        """Make the calls, until the caller gives up."""
        try:
            while self._at < len(self._calls) and not self.given_up:
                self._take(self._calls[self._at]())
        except BaseException as error:  # the caller's to judge, be it a panic of the library
            self.failure = error
        self.ended.set()

    def _take(self, result: object) -> None:
        with self._lock:
            if not self.given_up:
                self._results[self._at] = result
                self._at += 1
                self._since = time.monotonic()


def _work(batches: queue.SimpleQueue[_Batch]) -> None:
    """Serve batches until one was given up: another thread has taken this one's place."""
    given_up = False
    while not given_up:
        batch = batches.get()
        batch.run()
        given_up = batch.given_up
