"""Several models in one server: loaded, unloaded, put to sleep and woken while others serve.

Each has an engine process of its own. With `max_resident_models`, whoever asks for a model that
sleeps has it woken, and the model idle longest goes to sleep for it; one that has requests is let
be. One change is made at a time, as memory must be free before it is taken. Nothing here touches
requests for models that are awake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from hotshoe.config import EngineConfig
from hotshoe.engine.client import EngineClient, SleepMode
from hotshoe.errors import (
    CheckpointError,
    EngineDeadError,
    EngineError,
    HotshoeError,
    MemoryLimitError,
    QueueFullError,
    RequestError,
    UserError,
)
from hotshoe.plugins import PluginManager
from hotshoe.text.response import choose_format
from hotshoe_server.config import ServerConfig
from hotshoe_server.errors import ApiError
from hotshoe_server.plans import Plan, check_names, names_of, plan_of, that_sleeps
from hotshoe_server.renderer import Renderer
from hotshoe_server.state import Served, ServerState, Shared
from hotshoe_server.store import ResponseStore
from hotshoe_server.store_link import RemoteStore

T = TypeVar("T")
_log = logging.getLogger(__name__)
POLL_S = 0.02
#: How long requests that were aborted get to end before their engine is closed.
ABORT_S = 5.0
#: Tried one after the other: not every platform can move weights to the host's memory.
LEVELS = (1, 2)
MIB = 2**20


class Fleet:
    """Changes which models of a server there are, and which of them are awake.

    Args:
        plans: The models at the start; the first is loaded by the server itself, and last.
        base: Options that models loaded later leave open.
        build: Loads a model; called in a thread.
        serve: Makes a loaded model one that endpoints can use.
        say: Prints a line for people.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        base: EngineConfig,
        build: Callable[[Plan], EngineClient],
        serve: Callable[[ServerConfig, EngineClient], Served],
        say: Callable[[str], None],
    ) -> None:
        self.plans = plans
        self.config = plans[0].config
        self._base = replace(
            that_sleeps(base, self.config), lora_modules={}
        )  # which are a first model's
        self._build = build
        self._serve = serve
        self._say = say
        self._server: ServerState | None = None
        self._models: dict[str, Served] = {}
        self._limit = self.config.max_resident_models
        self._lock = asyncio.Lock()
        self._going: set[str] = set()
        self._wakes: dict[str, asyncio.Task[None]] = {}
        self._changes: set[asyncio.Task[Any]] = set()

    # The start.

    async def make_room(self) -> None:
        """Put models to sleep until one more may be awake, while no requests are served yet."""
        await self._make_room(None)

    def add(self, plan: Plan, client: EngineClient) -> Served:
        """Take a model that was loaded at the start."""
        served = self._serve(plan.config, client)
        self._models[served.name] = served
        return served

    def build(self, plan: Plan) -> EngineClient:
        """Load a model, in a thread.

        Raises:
            HotshoeError: It cannot be loaded. Where there are several, the error names the model,
                and where it does not fit, says what each of them takes.
        """
        try:
            return self._build(plan)
        except HotshoeError as error:
            if len(self.plans) > 1 or self._models:
                what, lines = plan.names[0], []
                if isinstance(error, MemoryLimitError):
                    what, lines = f"{what} does not fit", self.memory_plan()
                said = "\n  ".join([f"{what}: {error}", *lines])
                error.args = (said, *error.args[1:])
            raise

    def attach(self, server: ServerState) -> None:
        """Belong to a server, whose first model was loaded last."""
        server.models |= reversed(self._models.items())
        self._models, self._server = server.models, server
        server.fleet = self

    @property
    def wakes(self) -> bool:
        """Whether a request wakes the model that it asks for."""
        return self._limit is not None

    def memory_plan(self) -> list[str]:
        """Say what each model takes, and at the start what those to come may take, a line each."""
        lines = [_memory_line(served) for served in list(self._models.values())]
        missing = () if self._server else reversed(self.plans)  # in the order in which they load
        return lines + [_share_line(p) for p in missing if p.names[0] not in self._models]

    # What requests see.

    async def woken(self, served: Served) -> None:
        """Return once a model is awake. See `ServerState.held`.

        Raises:
            ApiError: It has not been woken in time, or will not be.
            EngineDeadError: Its engine has stopped.
        """
        if self._limit is None and len(self._models) == 1:
            return  # the engine of a lone model keeps requests until it is woken
        limit_s = self.config.model_wait_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while self._rests(served):
                    await self._wait(served)
        except TimeoutError:
            message = f"{served.name} is asleep and was not woken within {limit_s:g} s"
            raise ApiError("model_asleep", message, retry_after_s=5) from None

    async def _wait(self, served: Served) -> None:
        self._check(served)
        if self._limit is None:  # an operator wakes it
            await asyncio.sleep(POLL_S)
            return
        task = self._wakes.get(served.name)
        if task is None:
            task = self._wakes[served.name] = asyncio.create_task(self._wake(served))
            task.add_done_callback(lambda done: self._woke(served, done))
        done, _ = await asyncio.wait((task,), timeout=POLL_S)
        if done:
            try:
                task.result()
            except CheckpointError as error:  # whose paths are not for clients
                message = f"{served.name} cannot be woken now; the server's log says why"
                raise ApiError("model_asleep", message, retry_after_s=5) from error

    def _woke(self, served: Served, task: asyncio.Task[None]) -> None:
        """Forget an attempt; who still waits reads from it why it failed."""
        self._wakes.pop(served.name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("%s was not woken: %s", served.name, error)

    def _check(self, served: Served) -> None:
        """Stop waiting for what will not come.

        Raises:
            ApiError: The server ends, or the model is being unloaded.
            EngineDeadError: Its engine has stopped.
        """
        assert self._server is not None
        if self._server.draining:
            raise ApiError("shutting_down", retry_after_s=5)
        if self._models.get(served.name) is not served:
            raise ApiError("model_not_found", f"{served.name} has been unloaded", "model")
        served.client.check_queue()

    def _rests(self, served: Served) -> bool:
        return served.client.is_sleeping or served.name in self._going

    # What changes who is awake.

    async def sleep(self, served: Served, level: int = 1, mode: SleepMode = "keep") -> None:
        """Put a model to sleep; requests that come meanwhile wait for its wake."""
        self._going.add(served.name)
        try:
            await served.client.sleep(level, mode)
        finally:
            self._going.discard(served.name)

    async def wake_up(self, served: Served, tags: Iterable[str] | None = None) -> None:
        """Wake a model, for which another one may have to sleep.

        Raises:
            ApiError: The others were busy for too long.
        """
        if self._limit is None or tags is not None:
            await served.client.wake_up(tags)
            return
        served.num_open += 1
        try:
            await self.woken(served)
        finally:
            served.num_open -= 1

    async def _wake(self, served: Served) -> None:
        """Wake a model that somebody waits for."""
        async with self._lock:
            if await self._make_room(served) and self._rests(served):
                await served.client.wake_up()

    async def _make_room(self, wanted: Served | None) -> bool:
        """Put the models idle longest to sleep until one more may be awake.

        Returns:
            False when nobody waits for the wanted model any more.
        """
        while True:
            if wanted is not None and not wanted.num_open:
                return False
            others = [m for m in self._models.values() if m is not wanted and _takes_memory(m)]
            if self._limit is None or len(others) < self._limit:
                return True
            idle = [m for m in others if not m.num_open and m.name not in self._going]
            if not idle or not await self._rest(min(idle, key=lambda m: m.used_s)):
                await asyncio.sleep(POLL_S)

    async def _rest(self, served: Served) -> bool:
        """Put an idle model to sleep; return False if its engine has died."""
        for level in LEVELS:
            try:
                await self.sleep(served, level)
            except (RequestError, MemoryLimitError) as error:
                if level == LEVELS[-1]:
                    raise
                _log.warning("%s cannot sleep at level %d: %s", served.name, level, error)
            except EngineError:
                return False  # a new one is awake; or none comes, which takes no memory
            else:
                return True
        return False

    # What changes which models there are.

    async def load(self, name: str, own: Mapping[str, Any] | str) -> Served:
        """Load a further model. It is loaded even if whoever asked goes away.

        Raises:
            ApiError: The name is taken, it cannot be loaded as asked, or there was no room in time.
        """
        try:
            plan = plan_of(name, own, self._base, self.config)
            check_names([plan])
        except UserError as error:
            raise ApiError("invalid_value", str(error), "options") from error
        self._check_names(plan)
        if plan.engine.memory_share is None:
            plan = replace(plan, engine=replace(plan.engine, memory_share=self._free_share()))
        return await self._go_on(self._load(plan))

    def _free_share(self) -> float:
        """Return how much of the memory that is left a further model takes: half, or all where no
        other one may be awake beside those that are."""
        if self._limit is None:
            return 0.5
        num_awake = sum(map(_takes_memory, self._models.values()))
        return 1.0 if self._limit - num_awake <= 1 else 0.5

    async def _load(self, plan: Plan) -> Served:
        limit_s = self.config.model_wait_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._lock.acquire()
        except TimeoutError:
            raise self._busy(limit_s) from None
        try:
            self._check_names(plan)
            try:
                async with asyncio.timeout(limit_s):
                    await self._make_room(None)
            except TimeoutError:
                raise self._busy(limit_s) from None
            client = await self._built(plan)
            served = self._serve(plan.config, client)
            self._models[served.name] = served
        finally:
            self._lock.release()
        self._say(f"loaded: {served.name}")
        return served

    async def _built(self, plan: Plan) -> EngineClient:
        try:
            return await in_thread(lambda: self.build(plan))
        except (UserError, CheckpointError) as error:
            _log.warning("not loaded: %s", error)
            raise ApiError("invalid_value", str(error), "model") from error
        except HotshoeError as error:
            _log.error("not loaded: %s", error)
            raise ApiError("model_not_loaded") from error

    def _busy(self, limit_s: float) -> ApiError:
        message = f"no model could be put to sleep within {limit_s:g} s, as all have requests"
        return ApiError("models_busy", message, retry_after_s=5)

    def _check_names(self, plan: Plan) -> None:
        assert self._server is not None
        taken = {name: f"a model {name}" for name in self._server.names}
        for served in self._models.values():
            taken |= {name: f"an adapter {name} of {served.name}" for name in served.adapters}
        for field, names in (("name", plan.names), ("options", plan.engine.lora_modules)):
            for name in names:
                if name in taken:
                    message = f"there is {taken[name]} already; unload it first"
                    raise ApiError("invalid_value", message, field)

    async def unload(self, served: Served, mode: Literal["wait", "abort"] = "wait") -> None:
        """Let a model go: nobody finds it any more, and what it runs ends, or is ended.

        Args:
            served: The model.
            mode: "wait" lets requests end within `shutdown_timeout_s`; then, or with "abort", they
                are aborted.

        Raises:
            ApiError: It is the only one.
        """
        if len(self._models) == 1:
            message = "this is the only model; load another one first, or end the server"
            raise ApiError("invalid_value", message, "model")
        if self._models.get(served.name) is served:
            del self._models[served.name]
            await self._go_on(self._unload(served, mode))

    async def _unload(self, served: Served, mode: str) -> None:
        if mode == "wait":
            await _until(lambda: not served.num_open, self.config.shutdown_timeout_s)
        assert self._server is not None
        running = [i for i, r in self._server.in_flight.items() if r.served == served.name]
        if running:
            with contextlib.suppress(EngineError):  # a dead one has nothing to abort
                await served.client.abort(running)
            await _until(lambda: not served.num_open, ABORT_S)
        await in_thread(served.client.close)
        self._say(f"unloaded: {served.name}")

    async def _go_on(self, change: Coroutine[Any, Any, T]) -> T:
        """Do something to its end, even if whoever asked for it does not wait."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # else asyncio logs a traceback where nobody waits any more


def _takes_memory(served: Served) -> bool:
    return not served.client.is_sleeping and not served.client.is_over


def state_of(served: Served) -> str:
    """Return how a model is: "ready", "asleep", "paused", "down" for now, or "ended"."""
    client, down = served.client, False
    try:
        client.check_queue()
    except EngineDeadError:
        down = True
    except QueueFullError:
        pass
    states = {"ended": client.is_over, "down": down, "asleep": client.is_sleeping}
    states["paused"] = client.is_paused
    return next((state for state, holds in states.items() if holds), "ready")


def _memory_line(served: Served) -> str:
    sizes = served.client.info.memory.items()
    parts = ", ".join(f"{use} {size / MIB:,.0f} MiB" for use, size in sizes) or "unknown"
    return f"{served.name} ({state_of(served)}): {parts}"


def _share_line(plan: Plan) -> str:
    engine = plan.engine
    share = f"memory_share {engine.memory_share or 1:.3g} of the memory that is free then"
    if engine.kv_cache_memory_bytes is not None:
        share = f"kv_cache_memory_bytes {engine.kv_cache_memory_bytes / MIB:,.0f} MiB"
    return f"{plan.names[0]} (not loaded yet): {share}"


async def _until(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait until something holds, or for so long."""
    end_s = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end_s:
        await asyncio.sleep(POLL_S)


async def in_thread(work: Callable[[], T]) -> T:
    """Do something in a thread that does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(method: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            method(value)

    def tell(method: Callable[[Any], None], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(settle, method, value)

    def run() -> None:
        try:
            found = work()
        except BaseException as error:
            tell(future.set_exception, error)
        else:
            tell(future.set_result, found)

    threading.Thread(target=run, name="hotshoe-load", daemon=True).start()
    return await future


def make_state(
    config: ServerConfig,
    client: EngineClient,
    plugins: PluginManager,
    shared: Shared | None = None,
) -> ServerState:
    """Return what endpoints share, of a server with one model.

    Raises:
        PluginError: A parser's name is unknown.
    """
    served = make_served(config, client, plugins)
    store = (
        ResponseStore(config.response_store_bytes) if shared is None else RemoteStore(shared.store)
    )
    return ServerState(config, {served.name: served}, store, shared=shared)


def make_served(config: ServerConfig, client: EngineClient, plugins: PluginManager) -> Served:
    """Return a model as endpoints see it.

    Raises:
        PluginError: A parser's name is unknown.
    """
    templates = {} if client.tokenizer is None else client.tokenizer.chat_templates
    return Served(
        config,
        client,
        Renderer(
            client.tokenizer,
            config.default_chat_template_kwargs,
            client.info.max_model_len,
            client.config.allow_special_tokens_in_text,
            trust_templates=config.trust_request_chat_template,
        ),
        names_of(config, client.config),
        choose_format(plugins, "tool", config.tool_call_parser, templates),
        choose_format(plugins, "reasoning", config.reasoning_parser, templates),
    )


async def close_models(state: ServerState) -> None:
    """End the engines of all models, which takes as long as the slowest."""
    await close_all(served.client for served in state.models.values())


async def close_all(clients: Iterable[EngineClient]) -> None:
    """End engines at once."""
    await asyncio.gather(*(in_thread(client.close) for client in clients))
