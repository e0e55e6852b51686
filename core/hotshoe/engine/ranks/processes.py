"""Ranks that are processes of this host, none of them this one. See `hotshoe.executor.RankGroup`.

When this process goes, however it does, they see it and end.
"""

from __future__ import annotations

import selectors
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Sequence
from typing import Any

from hotshoe.engine.wire.children import LIMITS, RANK_COMMAND, RANKS, ChildProcess
from hotshoe.errors import EngineError, lack_of
from hotshoe.executor import Seat
from hotshoe.executor.group import FirstMessage
from hotshoe.foreign import ending

COMMAND = RANK_COMMAND
TIMES = RANKS


class RankProcess(ChildProcess):
    """The process of one rank, which expects its first message."""

    def __init__(self, rank: int, size: int, command: Sequence[str]) -> None:
        super().__init__(command, [f"rank-{rank}-of-{size}"])
        self.rank = rank

    def ending(self) -> str:
        """Say how the process has ended, or is about to."""
        self.wait(TIMES.exit_s)
        code = self.code
        if code is None:
            return "closed its channel"
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL; the machine may have run out of memory)"
        return f"was {ending(code)}" if code < 0 else f"ended with {code}"


def await_exits(ranks: Sequence[RankProcess], limit_s: float) -> None:
    """Give processes time to end by themselves."""
    deadline_s = time.monotonic() + limit_s
    for rank in ranks:
        rank.wait(max(deadline_s - time.monotonic(), 0))


def end_ranks(ranks: Sequence[RankProcess], directory: str) -> None:
    """End processes, by force where they run, and remove what belongs to them.

    That comes first: if this process is killed meanwhile, ranks that live remove the rest, and
    ranks that were ended could not. One that waits inside the kernel, for storage or a driver, ends
    when that comes back.
    """
    shutil.rmtree(directory, ignore_errors=True)
    for rank in ranks:
        rank.kill()
    await_exits(ranks, TIMES.killed_s)
    for rank in ranks:
        rank.connection.close()
    shutil.rmtree(directory, ignore_errors=True)


class ProcessGroup:
    """See `hotshoe.executor.RankGroup`.

    Args:
        size: Ranks of the engine.
        numbers: Those of this group; default: all.
        command: What to start for each rank.
        directory: Where ranks meet, which goes with them; default: one is made.
    """

    def __init__(
        self,
        size: int,
        numbers: range | None = None,
        command: Sequence[str] = COMMAND,
        directory: str | None = None,
    ) -> None:
        self.size = size
        self.ranks: list[RankProcess] = []
        self._numbers = range(size) if numbers is None else numbers
        self._command = command
        self._directory = directory
        self._selector = selectors.DefaultSelector()
        self._gone: set[int] = set()
        self._finalizer: weakref.finalize[Any, ProcessGroup] | None = None

    def start(self, first: FirstMessage) -> None:
        directory = self._directory or tempfile.mkdtemp(prefix="hotshoe-ranks-")
        # Ends them also when nobody calls `stop`.
        self._finalizer = weakref.finalize(self, end_ranks, self.ranks, directory)
        number = self._numbers.start
        try:
            for number in self._numbers:
                self.ranks.append(RankProcess(number, self.size, self._command))
        except OSError as error:
            raise lack_of(error) or EngineError(
                f"rank {number} of {self.size} cannot be started: {error}; {LIMITS}"
            ) from error
        for rank in self.ranks:
            self._selector.register(rank.connection, selectors.EVENT_READ, rank)
            part = (rank.rank - self._numbers.start, len(self._numbers))
            rank.connection.send(first(Seat(rank.rank, part, directory)))

    def fileno(self) -> int:
        """Return a descriptor that can be read when `receive` has something."""
        return self._selector.fileno()

    def send(self, rank: int, message: bytes) -> None:
        if self.ranks:
            self._of(rank).connection.send(message)

    def receive(self, timeout_s: float) -> list[tuple[int, bytes | None]]:
        for rank in self.ranks:
            if rank.rank in self._gone:
                continue
            writing = selectors.EVENT_WRITE if rank.connection.has_backlog else 0
            events = selectors.EVENT_READ | writing
            if self._selector.get_key(rank.connection).events != events:
                self._selector.modify(rank.connection, events, rank)
        found: list[tuple[int, bytes | None]] = []
        for key, events in self._selector.select(max(timeout_s, 0)):
            rank = key.data
            if events & selectors.EVENT_WRITE:
                rank.connection.flush()
            found += [(rank.rank, message) for message in rank.connection.receive()]
            if rank.connection.ended:
                found.append((rank.rank, None))
                self._gone.add(rank.rank)
                self._selector.unregister(rank.connection)
        return found

    def ending(self, rank: int) -> str:
        return self._of(rank).ending()

    def name(self, rank: int) -> str:
        return f"process {self._of(rank).pid}"

    def stop(self, leave_s: float = 0.0) -> None:
        if self._finalizer is None:
            return
        if leave_s:
            await_exits(self.ranks, leave_s)
        self._selector.close()
        self._finalizer()
        self.ranks = []

    def _of(self, rank: int) -> RankProcess:
        return self.ranks[rank - self._numbers.start]
