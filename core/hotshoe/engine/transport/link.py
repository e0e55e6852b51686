"""The contract between a front end and the thread or process that steps its engine.

A link carries commands there and calls its listener with what comes back. `ThreadLink` and
`SocketLink` implement it, `AsyncEngine` uses it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from hotshoe.engine.client import EngineInfo
from hotshoe.engine.wire.messages import Command, News
from hotshoe.errors import EngineDeadError
from hotshoe.text.tokenizer import Tokenizer


class Listener(Protocol):
    """Gets called by a thread of the link, or by the loop that attends to it.

    Must not block and must not raise.
    """

    def on_news(self, news: News) -> None:
        """The engine has said something; `Dead` is the last thing that it says."""
        ...

    def on_lost(self, error: EngineDeadError) -> None:
        """The engine cannot be reached: what it was asked for will not come."""
        ...

    def on_found(self, info: EngineInfo) -> None:
        """A new engine has taken the place of the one that was lost."""
        ...


class Link(Protocol):
    """A running engine, seen from its front end.

    Attributes:
        info: What the engine is made of, as of the start.
        tokenizer: As the configuration wants it.
        is_over: No engine runs, and none will be started.
    """

    @property
    def info(self) -> EngineInfo: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def is_over(self) -> bool: ...

    def start(self) -> None:
        """Begin to call the listener."""
        ...

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let a running loop listen from now on, where that saves waking a thread for each step."""
        ...

    def send(self, command: Command) -> None:
        """Send without waiting. May be called from any thread; while lost, nothing is sent."""
        ...

    def close(self) -> None:
        """Let go of the engine, and end it if this link started it."""
        ...
