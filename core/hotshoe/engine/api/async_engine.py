"""The front half of an engine, behind asyncio: tokenizes, detokenizes, streams.

The other half steps in a thread or in a process of its own. Tokenizing happens in threads of
its own, so that neither steps nor the event loop wait for it. Implements `EngineClient`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hotshoe.config import EngineConfig, ResolvedConfig
from hotshoe.engine.api.control import Control, listed
from hotshoe.engine.api.inputs import InputProcessor, is_short
from hotshoe.engine.client import EngineInfo
from hotshoe.engine.transport.link import Link
from hotshoe.engine.transport.mailbox import Mailbox, runs_here
from hotshoe.engine.wire.messages import (
    Abort,
    Add,
    Batch,
    Call,
    Dead,
    Heartbeat,
    News,
    Refused,
    Reply,
    State,
    Unwanted,
)
from hotshoe.errors import EngineDeadError, EngineError, QueueFullError, RequestError
from hotshoe.plugins import PluginManager
from hotshoe.text.output_processor import OutputProcessor, RequestUpdate
from hotshoe.text.tokenizer import Tokenizer, in_text_thread
from hotshoe.types import FinishReason, PoolingParams, Prompt, SamplingParams, TokenOutput

if TYPE_CHECKING:
    pass

DEADLINE = "deadline"


@dataclass(slots=True)
class _Stream:
    """One request, as long as somebody reads what it gains.

    Attributes:
        first_id: Of the sequence that a refusal would name; set once the request was sent.
        number: Of the addition.
        early_end: Set when it was to end before it was sent; holds the error, if any.
    """

    news: Mailbox = field(default_factory=Mailbox)
    first_id: str | None = None
    number: int = 0
    early_end: list[str | None] = field(default_factory=list)


class AsyncEngine(Control):
    """An engine for asyncio; see `EngineClient`. Use it from one event loop at a time.

    Args:
        config: The configuration; the model loads before this returns.
        plugins: Default: those installed. Excludes transport "process".
        transport: Where steps run: in a thread of this process, or in a process of their own.

    Raises:
        UserError: The engine cannot be built as asked.
    """

    def __init__(
        self,
        config: EngineConfig,
        plugins: PluginManager | None = None,
        transport: Literal["thread", "process"] = "thread",
    ) -> None:
        self._reset()
        if transport == "thread":
            from hotshoe.engine.transport.thread import ThreadLink

            self._attach(ThreadLink(config, plugins, self))
        else:
            from hotshoe.engine.transport.process import start_process

            assert transport == "process" and plugins is None
            self._attach(start_process(config, self))

    @classmethod
    def connect(cls, path: str | Path) -> AsyncEngine:
        """Return a further front end of an engine process, which listens at a socket.

        Raises:
            EngineError: No engine listens there.
            ConfigError: The engine is another version.
        """
        from hotshoe.engine.transport.socket_link import SocketLink

        engine = cls.__new__(cls)
        engine._reset()
        engine._attach(SocketLink(Path(path), engine))
        return engine

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[str, _Stream] = {}
        self._sent: dict[str, str] = {}  # first sequence to request
        self._uncounted: dict[int, int] = {}  # additions that the room may not count: sequences
        self._num_uncounted = 0
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._state = State()
        self._num_coming = 0  # sequences that are being tokenized
        self._last_sign_s = math.inf
        self._lost: EngineDeadError | None = None
        self._stalled: EngineDeadError | None = None
        self._closed = False

    def _attach(self, link: Link) -> None:
        self._link = link
        self._info = link.info
        self._inputs = InputProcessor(link.info, link.tokenizer)
        self._outputs = OutputProcessor(link.tokenizer)
        link.start()

    @property
    def config(self) -> ResolvedConfig:
        """The resolved configuration."""
        return self._info.config

    @property
    def info(self) -> EngineInfo:
        """What the engine is made of."""
        return self._info

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, None with `skip_tokenizer_init`."""
        return self._link.tokenizer

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called, and no `resume` since."""
        return self._state.is_paused

    @property
    def is_sleeping(self) -> bool:
        """Whether `sleep` was called, and no full `wake_up` since."""
        return self._state.is_sleeping

    @property
    def num_restarts(self) -> int:
        """How many times the engine died and a new one took over."""
        return self._info.num_restarts

    @property
    def is_over(self) -> bool:
        """Whether the engine has ended, and no other one will take over."""
        return self._link.is_over

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | PoolingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[RequestUpdate]:
        """See `EngineClient.generate`.

        Raises:
            RequestError: The request is malformed or could never be served.
        """
        arrival_s = time.monotonic()
        self._bind()
        self.check_queue()
        if request_id is None:
            request_id = f"async-{next(self._numbers)}"
        if request_id in self._streams:
            raise RequestError(f"request id {request_id!r} is in use", "request_id")
        params = params or SamplingParams(**self._info.sampling_defaults)
        timer = self._set_deadline(request_id, timeout_s)
        stream = self._streams[request_id] = _Stream()
        finished = False
        count = 1 if isinstance(params, PoolingParams) else params.n
        self._num_coming += count
        try:
            given = request_id, prompt, params, priority, tenant
            if is_short(prompt, params):
                new = self._inputs.prepare(*given)
            else:
                new = await in_text_thread(self._inputs.prepare, *given)
            self._check_alive()
            self._outputs.add(
                request_id, new.prompt, new.prompt_token_ids, new.params, new.add.ids, arrival_s
            )
            if stream.early_end:
                self._end(request_id, stream.early_end[0])
            else:
                self._num_coming -= count
                self._send_new(request_id, stream, new.add)
            while not finished:
                update = await stream.news.get()
                finished = update.finished
                yield update
        finally:
            if timer is not None:
                timer.cancel()
            if stream.first_id is None:
                self._num_coming -= count
            self._forget(request_id, stream)

    async def abort(self, request_ids: str | Iterable[str]) -> None:
        """See `EngineClient.abort`."""
        self._bind()
        for request_id in listed(request_ids):
            self._end(request_id, None)

    async def check_health(self) -> None:
        """See `EngineClient.check_health`.

        Raises:
            EngineDeadError: It has stopped, is stuck, or gives no sign of life.
        """
        self._check_alive()
        silent_s, limit_s = time.monotonic() - self._last_sign_s, self.config.engine_stall_timeout_s
        if silent_s > limit_s:
            raise EngineDeadError(f"the engine has given no sign of life for {silent_s:.0f} s")

    def check_queue(self) -> None:
        """See `EngineClient.check_queue`.

        Raises:
            QueueFullError: Too many requests wait.
        """
        self._check_alive()
        state = self._state  # another one may be told meanwhile
        while self._uncounted and (first := next(iter(self._uncounted))) <= state.last_add:
            self._count(first)
        if state.room <= self._num_coming + self._num_uncounted:
            raise QueueFullError("too many requests are waiting already", state.retry_after_s)

    def close(self) -> None:
        """See `EngineClient.close`."""
        if not self._closed:
            self._closed = True
            self._link.close()
            self.on_lost(EngineDeadError("the engine was closed"))

    # What the link calls, from its thread or in the loop.

    def on_news(self, news: News) -> None:
        """See `Listener.on_news`."""
        self._last_sign_s = time.monotonic()
        if isinstance(news, Heartbeat):
            self._judge(news)
        elif isinstance(news, State):
            self._state = news
        elif isinstance(news, Dead):
            error = news.error.unwrap()
            assert isinstance(error, EngineDeadError)
            self.on_lost(error)
        else:
            self._post(self._take, news)

    def on_lost(self, error: EngineDeadError) -> None:
        """See `Listener.on_lost`."""
        if self._lost is None:
            self._lost = error
        self._post(self._fail, self._lost)

    def on_found(self, info: EngineInfo) -> None:
        """See `Listener.on_found`."""
        self._info = info
        # Before its first word: it is as asleep as the one before it was.
        self._state = State(is_sleeping=self._state.is_sleeping)
        self._lost = self._stalled = None

    def _judge(self, beat: Heartbeat) -> None:
        """Fail everybody when a step has not ended for too long; recover when it has."""
        limit_s = self.config.engine_stall_timeout_s
        if beat.busy_s <= limit_s:
            self._stalled = None
        elif self._stalled is None:
            self._stalled = EngineDeadError(
                f"the engine is stuck: a step has not come to an end within {limit_s:g} s "
                "(--engine-stall-timeout-s)"
            )
            self._post(self._fail, self._stalled)

    def _post(self, function: Callable[[Any], None], argument: object) -> None:
        """Run in the event loop; one that is closed has nobody who listens."""
        if self._loop is None:
            return
        if runs_here(self._loop):
            function(argument)
        else:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, argument)

    # What runs in the event loop.

    def _send_new(self, request_id: str, stream: _Stream, add: Add) -> None:
        stream.first_id = add.ids[0]
        self._sent[stream.first_id] = request_id
        stream.number = add.number = next(self._numbers)
        self._uncounted[stream.number] = len(add.ids)
        self._num_uncounted += len(add.ids)
        self._link.send(add)

    def _count(self, number: int) -> None:
        """Forget an addition that the room counts now, or that has ended."""
        self._num_uncounted -= self._uncounted.pop(number, 0)

    def _bind(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, to which this engine belongs from now on.

        Raises:
            EngineError: Another loop is still using it.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed() and self._streams:
                raise EngineError("an AsyncEngine can serve one event loop at a time")
            self._loop = loop
            self._calls.clear()
            self._link.attend(loop)
        return loop

    def _check_alive(self) -> None:
        for error in (self._lost, self._stalled):
            if error is not None:
                raise EngineDeadError(str(error))  # anew, as raising adds to its traceback

    async def _call(self, verb: str, **arguments: Any) -> Any:
        future = self._bind().create_future()
        self._check_alive()
        number = next(self._numbers)
        self._calls[number] = future
        try:
            self._link.send(Call(number, verb, arguments))
            return await future
        finally:
            self._calls.pop(number, None)

    def _take(self, news: News) -> None:
        if isinstance(news, Batch):
            self._deliver(news.outputs, news.time_s)
        elif isinstance(news, Refused):
            stream = self._streams.get(self._sent.get(news.id, ""))
            if stream is not None:
                stream.news.fail(news.error.unwrap())
        elif isinstance(news, Unwanted):
            for request_id in list(self._streams) if news.ids is None else news.ids:
                self._end(request_id, None)
        elif isinstance(news, Reply):
            future = self._calls.get(news.number)
            if future is not None and not future.done():
                if news.error is None:
                    future.set_result(news.result)
                else:
                    future.set_exception(news.error.unwrap())

    def _deliver(self, outputs: list[TokenOutput], time_s: float) -> None:
        updates, stopped = self._outputs.process(outputs, time_s)
        for update in updates:
            self._streams[update.request_id].news.put(update)
        if stopped:
            self._link.send(Abort(stopped))

    def _set_deadline(self, request_id: str, timeout_s: float | None) -> asyncio.TimerHandle | None:
        if timeout_s is None:
            return None
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
            raise RequestError(f"timeout_s must be a number, not {timeout_s!r}", "timeout_s")
        if not 0 < timeout_s < math.inf:  # NaN is refused too
            raise RequestError(f"timeout_s must be above 0, not {timeout_s}", "timeout_s")
        assert self._loop is not None
        return self._loop.call_later(timeout_s, self._end, request_id, DEADLINE)

    def _end(self, request_id: str, error: str | None) -> None:
        """End a request's unfinished sequences with finish reason ABORT."""
        stream = self._streams.get(request_id)
        if stream is None:
            return
        ids = self._outputs.unfinished(request_id)
        if ids is None:  # still being tokenized
            stream.early_end.append(error)
            return
        reason = FinishReason.ABORT
        outputs = [TokenOutput(i, [], finish_reason=reason, error=error) for i in ids]
        self._deliver(outputs, time.monotonic())
        if stream.first_id is not None:
            self._send_if_alive(Abort(ids))

    def _forget(self, request_id: str, stream: _Stream) -> None:
        """Drop a request that has ended or that nobody listens to any more."""
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            ids = self._outputs.abort(request_id)
            if stream.first_id is not None:
                del self._sent[stream.first_id]
                self._count(stream.number)
                if ids:
                    self._send_if_alive(Abort(ids))

    def _send_if_alive(self, command: Abort) -> None:
        if self._lost is None:
            self._link.send(command)

    def _fail(self, error: EngineDeadError) -> None:
        for stream in self._streams.values():
            stream.news.fail(EngineDeadError(str(error)))
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDeadError(str(error)))
