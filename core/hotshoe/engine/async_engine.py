"""The engine behind asyncio: one thread steps it, any number of tasks stream from it.

The engine thread owns the engine; tasks talk to it through a command queue, and it talks back by
`call_soon_threadsafe`. A task that goes away aborts its request. A failed engine fails every
request with `EngineDeadError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from hotshoe.config import EngineConfig
from hotshoe.engine.engine import Engine
from hotshoe.errors import EngineDeadError
from hotshoe.plugins import PluginManager
from hotshoe.text.output_processor import RequestUpdate
from hotshoe.types import Prompt, SamplingParams

Command = Callable[[], None]


@dataclass(slots=True)
class _Stream:
    """Where one request's news goes: a task's loop and its mailbox.

    The mailbox is bounded by the request's own length.
    """

    loop: asyncio.AbstractEventLoop
    mailbox: asyncio.Queue[RequestUpdate | Exception] = field(default_factory=asyncio.Queue)

    def put(self, news: RequestUpdate | Exception) -> None:
        """Called by the engine thread. A closed loop has nobody who listens."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.mailbox.put_nowait, news)


class AsyncEngine:
    """An engine in a thread of its own.

    Args:
        config: The configuration; the model loads in the calling thread.
        plugins: Default: those installed.

    Raises:
        UserError: The engine cannot be built as asked.
    """

    def __init__(self, config: EngineConfig, plugins: PluginManager | None = None) -> None:
        self.engine = Engine(config, plugins)
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._failure: Exception | None = None
        self._closed = False
        self._count = 0
        self._thread = threading.Thread(target=self._run, name="hotshoe-engine", daemon=True)
        self._thread.start()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[RequestUpdate]:
        """See `EngineClient.generate`."""
        if request_id is None:
            self._count += 1
            request_id = f"async-{self._count}"
        stream = _Stream(asyncio.get_running_loop())
        self._send(
            lambda: self._add(
                stream, request_id, prompt, params or SamplingParams(), priority, tenant
            )
        )
        finished = False
        try:
            while not finished:
                news = await stream.mailbox.get()
                if isinstance(news, Exception):
                    finished = True
                    raise news
                finished = news.finished
                yield news
        finally:
            if not finished:
                self._send_if_open(lambda: self._abort(request_id, stream))

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Run a function in the engine thread, between steps, and return its result."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        loop = future.get_loop()

        def run() -> None:
            try:
                result = function(self.engine)
            except Exception as error:
                loop.call_soon_threadsafe(future.set_exception, error)
            else:
                loop.call_soon_threadsafe(future.set_result, result)

        self._send(run)
        return await future

    def close(self) -> None:
        """Stop the thread, fail what is still running, release the device."""
        if not self._closed:
            self._closed = True
            self._commands.put(None)
            self._thread.join()
            self.engine.close()

    def _send(self, command: Command) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise EngineDeadError("the engine was closed")
        self._commands.put(command)

    def _send_if_open(self, command: Command) -> None:
        if self._failure is None and not self._closed:
            self._commands.put(command)

    # Everything below runs in the engine thread.

    def _run(self) -> None:
        try:
            while self._take_commands():
                if self.engine.has_work():
                    self._deliver(self.engine.step())
            raise EngineDeadError("the engine was closed")
        except Exception as error:
            self._fail(error)

    def _take_commands(self) -> bool:
        """Run what has been asked for; wait for something when there is no work."""
        while True:
            try:
                command = self._commands.get(block=not self.engine.has_work())
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _add(
        self,
        stream: _Stream,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        priority: int,
        tenant: str | None,
    ) -> None:
        try:
            self.engine.add(request_id, prompt, params, priority, tenant)
        except Exception as error:  # this request's failure; the engine goes on
            stream.put(error)
        else:
            self._streams[request_id] = stream

    def _abort(self, request_id: str, stream: _Stream) -> None:
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self.engine.abort(request_id)

    def _deliver(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            stream = self._streams.get(update.request_id)
            if stream is not None:
                stream.put(update)
                if update.finished:
                    del self._streams[update.request_id]

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, EngineDeadError):
            error = EngineDeadError(f"the engine has stopped: {type(error).__name__}: {error}")
        self._failure = error
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command()  # additions now fail by themselves, and say so to their streams
        for stream in self._streams.values():
            stream.put(error)
        self._streams.clear()
