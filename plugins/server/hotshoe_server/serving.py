"""A server's life: listen, load, serve, drain, end.

The socket is open and `/live` answers before the model is loaded, which happens in a thread; so a
signal is obeyed in every phase. Of several processes on one socket, one alone answers before it can
serve: who has been told that the server is ready never meets one that is not. Shutting down:
readiness turns red and nothing new is taken, what runs may end within `shutdown_timeout_s`, the
rest is aborted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import uvicorn
import uvloop
from starlette.types import ASGIApp

from hotshoe.engine.client import EngineClient
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe_server.admission import AdminDoor, Front
from hotshoe_server.app import create_app
from hotshoe_server.config import ServerConfig
from hotshoe_server.extensions import Parts, ServerExtension, blamed, living
from hotshoe_server.fleet import Fleet, close_all, close_models, in_thread, make_state
from hotshoe_server.logs import start_logs
from hotshoe_server.middleware import operators_parts
from hotshoe_server.named_adapters import named_adapters
from hotshoe_server.protocol import FLUSH_S, Connections, let_in, protocol_for
from hotshoe_server.signals import signals_call
from hotshoe_server.state import ServerState, Shared, TurnAway

_log = logging.getLogger(__name__)
#: After that: how long what served them may take to notice.
CUT_S = 2
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Start:
    """How a server begins.

    Attributes:
        answers_early: Whether connections are taken before the model is loaded.
        on_serving: Called once requests are served.
        fleet: Knows of further models than the one that `load` builds.
    """

    answers_early: bool = True
    on_serving: Callable[[], None] = lambda: None
    fleet: Fleet | None = None


START = Start()


class Server:
    """One process that answers HTTP.

    Args:
        config: The server's configuration.
        plugins: Where extensions and parsers come from.
        extensions: Those installed, by name, with their options.
        load: Builds the engine; called in a thread.
        say: Prints a line for people.
        shared: As in `ServerState`.
        start: How it begins.
    """

    def __init__(
        self,
        config: ServerConfig,
        plugins: PluginManager,
        extensions: Mapping[str, tuple[ServerExtension, Any]],
        load: Callable[[], EngineClient],
        say: Callable[[str], None],
        shared: Shared | None = None,
        start: Start = START,
    ) -> None:
        self._config = config
        self._plugins = plugins
        self._extensions = extensions
        self._load = load
        self._say = say
        self._shared = shared
        self._on_serving = start.on_serving
        self._fleet = start.fleet
        self._front = Front()
        self._takes = asyncio.Event()
        if start.answers_early:
            self._takes.set()
        self._stop = asyncio.Event()
        self._forced = False
        self._entering: asyncio.Timeout | None = None

    def run(self, listener: socket.socket, admin: socket.socket | None) -> int:
        """Serve two sockets until a signal; return the exit code.

        Raises:
            UserError: The engine cannot be built as asked, or an option of the server is bad.
        """
        # Below that, it says of every broken request that it was broken, which fills disks.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._run(listener, admin))

    async def _run(self, listener: socket.socket, admin: socket.socket | None) -> int:
        async with AsyncExitStack() as stack:
            stack.enter_context(signals_call(self._on_signal))
            front = self._front
            await stack.enter_async_context(self._listen(front, listener, front.turn_away))
            if admin is not None:
                await stack.enter_async_context(self._listen(AdminDoor(self._front), admin))
            clients: list[EngineClient] = []
            stack.push_async_callback(close_all, clients)
            await self._load_others(clients)
            clients.append(await self._loaded(self._load))
            state = make_state(self._config, clients[-1], self._plugins, self._shared)
            if self._fleet is not None:
                self._fleet.attach(state)
            stack.push_async_callback(close_models, state)
            await self._serve(state, stack)
        return 0

    async def _load_others(self, clients: list[EngineClient]) -> None:
        """Load all models but the first, last to first: the first ones are awake in the end."""
        fleet = self._fleet
        for plan in reversed(fleet.plans[1:] if fleet else ()):
            assert fleet is not None
            await fleet.make_room()
            clients.append(await self._loaded(partial(fleet.build, plan)))
            fleet.add(plan, clients[-1])
        if fleet is not None:
            await fleet.make_room()

    def _on_signal(self) -> None:
        self._forced = self._stop.is_set()
        self._stop.set()
        if self._entering is not None:
            end_now(self._entering)

    async def _loaded(self, load: Callable[[], EngineClient]) -> EngineClient:
        """Build an engine in a thread; do not return when a signal comes first."""
        loading = asyncio.ensure_future(in_thread(load))
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((loading, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not loading.done():
            self._leave_while_loading()
        return loading.result()

    def _leave_while_loading(self) -> NoReturn:
        """End at once: the thread that loads cannot be stopped, and nothing is in flight."""
        if self._shared is None:  # otherwise the sockets are the supervisor's
            for path in filter(None, (self._config.admin_socket, self._config.uds)):
                Path(path).unlink(missing_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    async def _serve(self, state: ServerState, stack: AsyncExitStack) -> None:
        stack.callback(state.store.close)
        parts: dict[str, Parts] = {}
        for name, (extension, options) in self._extensions.items():
            with blamed(name):
                parts[name] = built = resolve_lazy(extension.build)(state, options)
                if not isinstance(built, Parts):
                    raise TypeError(f"build returned {built!r} instead of Parts")
        parts |= operators_parts(self._config.middleware)
        start_logs(self._config)  # again: what has been loaded brought handlers of its own
        if not await self._enter(parts, stack):
            return
        app = create_app(state, parts, named_adapters(state, self._plugins))
        self._front.app, self._front.refuse = app, state.turn_away or let_in
        self._takes.set()
        self._on_serving()
        self._say(f"ready: {', '.join(state.names)}")
        await self._stop.wait()
        await self._drain(state)

    async def _enter(self, parts: Mapping[str, Parts], stack: AsyncExitStack) -> bool:
        """Enter the lifespans of extensions; return False when a signal comes first."""
        try:
            async with asyncio.timeout(None) as self._entering:
                for name, part in parts.items():
                    if part.lifespan is not None:
                        await stack.enter_async_context(living(name, part.lifespan))
        except TimeoutError:
            return False
        finally:
            self._entering = None
        return True

    async def _drain(self, state: ServerState) -> None:
        """Let requests end, and end those that do not."""
        state.draining = True
        self._say(f"shutting down; requests that run: {state.num_open}")
        deadline = asyncio.get_running_loop().time() + self._config.shutdown_timeout_s
        while state.num_open and not self._forced:
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(POLL_S)
        if state.in_flight:
            self._say(f"aborting the requests that still run: {len(state.in_flight)}")
            for served in state.models.values():
                with contextlib.suppress(Exception):  # a dead engine has nothing to abort
                    await served.client.abort(list(state.in_flight))
        for limit in state.reading:  # who has not sent all yet learns why it will not be read
            end_now(limit)

    @contextlib.asynccontextmanager
    async def _listen(
        self, app: ASGIApp, listener: socket.socket, turn_away: TurnAway = let_in
    ) -> Any:
        """Answer a socket's connections once they are taken; at the end, let them send the rest."""
        config = self._config
        private = listener.family == socket.AF_UNIX  # which speaks no TLS
        settings = uvicorn.Config(
            app,
            http=protocol_for(config, turn_away),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,  # which is `start_logs`'s affair
            access_log=config.access_log,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=FLUSH_S + CUT_S,
            ssl_certfile=None if private else config.ssl_certfile,
            ssl_keyfile=None if private else config.ssl_keyfile,
        )
        settings.load()  # the certificate as it has been checked, not as it is once it is needed
        server = Connections(settings, self._takes)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            if self._takes.is_set():
                await task
            else:
                task.cancel()


def end_now(limit: asyncio.Timeout) -> None:
    """Let a time limit that is being waited under expire, unless it does already."""
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())
