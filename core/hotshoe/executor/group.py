"""Where the ranks of an engine run: what starts them, carries messages to them, and ends them.

Messages are bytes, and their sender knows nothing of the way. Core's own ranks are processes of
this host (`hotshoe.engine.ranks.processes`) or of several (`hotshoe.engine.ranks.agents`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank is, and where it meets the others.

    Attributes:
        rank: Its number.
        part: Its place among the ranks that see the same devices, and their number.
        directory: A folder of its host, private to this engine, the same for all ranks there.
        address: `HOST:PORT` where ranks of several hosts meet; the first rank listens there. ""
            where all are of one host.
        hosts: By rank, a number that is equal for ranks of one host; empty where all are.
    """

    rank: int
    part: tuple[int, int]
    directory: str
    address: str = ""
    hosts: tuple[int, ...] = ()


#: Makes the first message of a rank.
FirstMessage: TypeAlias = Callable[[Seat], bytes]


class RankGroup(Protocol):
    """The ranks of one engine. Called from one thread; nothing waits but where it says so.

    Attributes:
        size: Their number.
    """

    size: int

    def start(self, first: FirstMessage) -> None:
        """Start every rank with its first message. May be called once, and may wait.

        Raises:
            EngineError: Not all of them can be started; `stop` ends the others.
        """
        ...

    def send(self, rank: int, message: bytes) -> None:
        """Send a message, or keep it until there is room. Drops it if the rank has ended."""
        ...

    def receive(self, timeout_s: float) -> list[tuple[int, bytes | None]]:
        """Wait until a rank has sent a message or has ended; return all messages, in order.

        Returns:
            Ranks and their messages. None is the last one of a rank that has ended; it comes once.
        """
        ...

    def ending(self, rank: int) -> str:
        """Say how a rank that has gone has ended: "was killed (SIGKILL)". May wait a second."""
        ...

    def name(self, rank: int) -> str:
        """Say where a rank is, as a user finds it: "process 1234"."""
        ...

    def stop(self, leave_s: float = 0.0) -> None:
        """End every rank, and leave nothing of them.

        Also done when nobody has a reference to the group any more, and when this process ends,
        however it does. May be called twice.

        Args:
            leave_s: How long ranks that were told to leave may take to do so by themselves.
        """
        ...
