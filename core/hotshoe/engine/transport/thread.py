"""The engine in a thread of the front end's own process: no messages are encoded, objects move.

See `hotshoe.engine.transport.link` for the other side of the contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable

from hotshoe.config import EngineConfig
from hotshoe.engine.core.boot import boot
from hotshoe.engine.transport.link import Listener
from hotshoe.engine.transport.loop import EngineLoop
from hotshoe.engine.wire.messages import Command, Hello, News, Side
from hotshoe.errors import EngineDeadError
from hotshoe.plugins import PluginManager

CLOSE_S = 10.0
_FRONT_END = 0


class ThreadPort:
    """A queue one way, a function the other; see `hotshoe.engine.transport.loop.Port`."""

    def __init__(self, deliver: Callable[[News], None]) -> None:
        self.commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._deliver = deliver

    def receive(self, timeout_s: float) -> list[tuple[int, Command | None]]:
        found: list[tuple[int, Command | None]] = []
        try:
            if timeout_s > 0:
                found.append((_FRONT_END, self.commands.get(timeout=timeout_s)))
            while True:
                found.append((_FRONT_END, self.commands.get_nowait()))
        except queue.Empty:
            return [(peer, command) for peer, command in found if command is not None]

    def send(self, peer: int, news: News) -> None:
        self._deliver(news)

    def broadcast(self, news: News) -> None:
        self._deliver(news)

    def wake(self) -> None:
        self.commands.put(None)


class ThreadLink:
    """Boots an engine in the calling thread and runs it in another; see `Link`.

    Raises:
        UserError: The engine cannot be built as asked.
    """

    def __init__(
        self, config: EngineConfig, plugins: PluginManager | None, listener: Listener
    ) -> None:
        self._booted = boot(config, plugins)
        self.info = self._booted.info
        self.tokenizer = self._booted.tokenizer
        self._port = ThreadPort(listener.on_news)
        self._loop = EngineLoop(self._booted.core, self.info, self._port)
        self._thread = threading.Thread(target=self._run, name="hotshoe-engine", daemon=True)

    @property
    def is_over(self) -> bool:
        return self._thread.ident is not None and not self._thread.is_alive()

    def start(self) -> None:
        self.send(Hello(Side()))
        self._thread.start()

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """The engine's own thread speaks; there is no other one to save."""

    def send(self, command: Command) -> None:
        self._port.commands.put(command)

    def close(self) -> None:
        self._loop.stop()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():  # a stuck step still uses the device
            self._booted.core.close()

    def _run(self) -> None:
        with contextlib.suppress(EngineDeadError):  # the loop has told the listener
            self._loop.run()
