"""Adapters that nobody loaded yet: found by the name in a request, loaded, and unloaded when idle.

Resolvers say where the adapter of a name lies: the folder `lora_dir`, and those of plugins that
`lora_resolver` names. Endpoints are wrapped, so that requests of a server without any pass none of
this. Resolvers are asked before anything else happens: a name that none knows wakes no model.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hotshoe.errors import (
    CheckpointError,
    ConfigError,
    MemoryLimitError,
    PluginError,
    RequestError,
)
from hotshoe.lazy import resolve_lazy
from hotshoe.models.source import ADAPTER_FILES
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import blaming_plugin
from hotshoe_server.config import ServerConfig
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint
from hotshoe_server.fleet import in_thread
from hotshoe_server.state import Served, ServerState

_log = logging.getLogger(__name__)
HOOK = "hotshoe_adapter_resolvers"
#: Of a name that the engine takes.
MAX_NAME_CHARS = 256
#: How long a name that failed, or that plugins do not know, is not tried again; and of how many.
RETRY_S, MAX_FAILURES = 5.0, 1024
#: Names that are being brought at once, and those of them that one resolver is asked for.
MAX_WAITING, MAX_ASKED = 64, 4

#: Returns the folder of an adapter, None where the name is none of its own.
Resolve = Callable[[str], Path | None]


@dataclass(slots=True)
class _Loaded:
    """An adapter that a resolver found.

    Attributes:
        served: The model that has it.
        path: Its folder.
        num_restarts: Of the engine that loaded it; a later engine has not.
        num_open: Requests that name it.
    """

    served: Served
    path: str
    num_restarts: int
    num_open: int = 0


@dataclass(slots=True)
class NamedAdapters:
    """Brings adapters for requests that name them.

    Attributes:
        server: Whose models get them.
        resolvers: Asked in order, in a thread.
        asks_plugins: Whether some may ask elsewhere: a name that nobody knows is remembered then.
    """

    server: ServerState
    resolvers: Sequence[Resolve]
    asks_plugins: bool = False
    _loaded: dict[str, _Loaded] = field(default_factory=dict)  # the one unused longest is first
    _failed: dict[str, tuple[float, ApiError | None]] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _turns: list[asyncio.Semaphore] = field(init=False)

    def __post_init__(self) -> None:
        self._turns = [asyncio.Semaphore(MAX_ASKED) for _ in self.resolvers]

    def wrap(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint whose handler finds the adapter that its body names."""
        if not endpoint.generates:
            return endpoint
        handler = endpoint.handler

        @functools.wraps(handler)
        async def handle(call: Any, *bodies: Any) -> Any:
            async with self.held(getattr(bodies[0], "model", None) if bodies else None):
                return await handler(call, *bodies)

        return replace(endpoint, handler=handle)

    @contextlib.asynccontextmanager
    async def held(self, name: str | None) -> AsyncIterator[None]:
        """Keep an adapter loaded for a request; load it where a resolver knows the name.

        Raises:
            ApiError: It cannot be loaded, or not in time.
            EngineDeadError: The engine has stopped.
        """
        found = None
        if name and len(name) <= MAX_NAME_CHARS and self._is_ours(name):
            found = await self._found(name)
        if found is None:
            yield
            return
        found.num_open += 1
        try:
            yield
        finally:
            found.num_open -= 1

    def _is_ours(self, name: str) -> bool:
        """Tell whether a name is no model's, nor of an adapter that came in another way."""
        models = self.server.models.values()
        if any(served.is_called(name) for served in models):
            return False
        return name in self._loaded or not any(name in served.adapters for served in models)

    def _is_there(self, name: str) -> bool:
        """Tell whether an adapter is loaded; its engine may be a new one, or its model gone."""
        found = self._loaded.get(name)
        return (
            found is not None
            and found.num_restarts == found.served.client.num_restarts
            and name in found.served.adapters
            and self.server.models.get(found.served.name) is found.served
        )

    async def _found(self, name: str) -> _Loaded | None:
        """Return an adapter once it is loaded; None where nobody knows the name."""
        limit_s = self.server.config.lora_wait_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while not self._is_there(name):
                    if name in self._failed:
                        until_s, error = self._failed[name]
                        if time.monotonic() < until_s:
                            if error is None:
                                return None
                            raise error.with_traceback(None)
                        del self._failed[name]
                    task = self._task(name)
                    await asyncio.wait((task,))
                    if task.exception() is None and name not in self._loaded:
                        return None
                    task.result()
        except TimeoutError:
            message = f"adapter {name!r} was not loaded within {limit_s:g} s"
            raise ApiError("adapter_not_ready", message, "model", retry_after_s=5) from None
        found = self._loaded[name] = self._loaded.pop(name)
        return found

    def _task(self, name: str) -> asyncio.Task[None]:
        """Return what brings an adapter, for all requests that wait for it."""
        if name not in self._tasks:
            if len(self._tasks) >= MAX_WAITING:
                message = "too many other adapters are being loaded"
                raise ApiError("adapter_not_ready", message, "model", retry_after_s=5)
            self._tasks[name] = task = asyncio.create_task(self._bring(name))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._tasks[name]

    async def _bring(self, name: str) -> None:
        """Find and load an adapter; remember for a while that it cannot be had."""
        path = None
        try:
            path = await self._ask(name)
            if path is not None:
                await self._load(name, str(path))
            else:
                self._drop(name)
                if self.asks_plugins:
                    self._fail(name, None)
        except (CheckpointError, MemoryLimitError, PluginError, RequestError) as error:
            _log.warning("adapter %r was not loaded: %s", name, error)
            answer = _answer(name, error, path is not None)
            self._fail(name, answer)
            raise answer from error
        finally:
            del self._tasks[name]

    async def _ask(self, name: str) -> Path | None:
        """Ask resolvers in order; a slow one holds up those names alone that come to it."""
        for resolve, turns in zip(self.resolvers, self._turns, strict=True):
            async with turns:
                path = await in_thread(partial(resolve, name))
            if path is not None:
                return path
        return None

    def _drop(self, name: str) -> None:
        """Forget an adapter that its engine has no more."""
        if (found := self._loaded.pop(name, None)) is not None:
            found.served.adapters.discard(name)

    def _fail(self, name: str, error: ApiError | None) -> None:
        if len(self._failed) >= MAX_FAILURES:
            del self._failed[next(iter(self._failed))]
        self._failed[name] = time.monotonic() + RETRY_S, error

    async def _load(self, name: str, path: str) -> None:
        """Load an adapter into the first model that takes any, and wake it for that."""
        models = self.server.models.values()
        served = next((one for one in models if one.client.config.enable_lora), None)
        if served is None:
            raise RequestError("no model here takes adapters", "model")
        async with self.server.held(served), self._lock:
            if self._is_there(name):
                return
            if served.client.is_sleeping:  # a lone model, whose operator wakes it
                raise ApiError("engine_asleep", retry_after_s=5)
            if (await served.client.adapters()).get(name, path) != path:  # an operator's by now
                self._loaded.pop(name, None)
                return
            await self._make_room()
            num_restarts = served.client.num_restarts
            await served.client.load_adapter(name, path)
            served.adapters.add(name)
            self._loaded[name] = _Loaded(served, path, num_restarts)

    async def _make_room(self) -> None:
        """Unload the adapters unused longest until one more may be loaded.

        Raises:
            ApiError: All of them are in use.
        """
        limit = self.server.config.max_resolved_loras
        for name in [name for name in self._loaded if not self._is_there(name)]:
            self._drop(name)
        for name, found in list(self._loaded.items()):
            if len(self._loaded) < limit:
                return
            if not found.num_open:
                await self._unload(name, found)
        if len(self._loaded) >= limit:
            message = f"all {limit} places of adapters are in use (--max-resolved-loras)"
            raise ApiError("adapter_not_ready", message, "model", retry_after_s=5)

    async def _unload(self, name: str, found: _Loaded) -> None:
        """Unload an adapter, unless requests use it; leave one to whoever replaced it."""
        adapters = found.served.adapters
        del self._loaded[name]  # from here on, a request for it waits
        if (await found.served.client.adapters()).get(name) != found.path:
            return
        adapters.discard(name)
        try:
            await found.served.client.unload_adapter(name)
        except RequestError:  # a stream, whose handler has ended
            adapters.add(name)
            self._loaded[name] = found


def in_folder(folder: Path, name: str) -> Path | None:
    """Return the adapter that is a direct child of a folder, by the child's name.

    Names with separators or a leading dot are none. Nor is a child that a link leads out of the
    folder, or whose files are such links. Nothing is remembered: a new child is there at once.
    """
    if not name or name.startswith(".") or any(mark in name for mark in "/\\\0"):
        return None
    try:
        root = folder.resolve(strict=True)
        child = (root / name).resolve(strict=True)
        files = [(child / file).resolve() for file in ADAPTER_FILES]
        inside = child.parent == root and all(file.is_relative_to(root) for file in files)
        return child if inside and files[0].is_file() else None
    except (OSError, RuntimeError, ValueError):  # no such child, a loop, or no name of a file
        return None


def named_adapters(server: ServerState, plugins: PluginManager) -> NamedAdapters | None:
    """Return what finds adapters by name, None where no option asks for any.

    Raises:
        ConfigError: `lora_dir` is no directory.
        PluginError: No plugin offers a resolver that is asked for.
    """
    config = server.config
    resolvers = find_resolvers(config, plugins, server.client.config.download_dir)
    return NamedAdapters(server, resolvers, bool(config.lora_resolver)) if resolvers else None


def find_resolvers(
    config: ServerConfig, plugins: PluginManager, download_dir: str | None = None
) -> list[Resolve]:
    """Return the resolvers that options ask for.

    Args:
        config: Says which.
        plugins: Have them.
        download_dir: Where fetched files are kept; None for a resolver's own place.

    Raises:
        ConfigError: `lora_dir` is no directory.
        PluginError: No plugin offers a resolver that is asked for.
    """
    resolvers: list[Resolve] = []
    if config.lora_dir is not None:
        try:
            root = Path(config.lora_dir).expanduser()
        except RuntimeError as error:  # the home of somebody unknown
            raise ConfigError(f"lora_dir {config.lora_dir!r}: {error}") from None
        if not root.is_dir():
            raise ConfigError(f"lora_dir {config.lora_dir!r} is no directory; create it first")
        resolvers.append(partial(in_folder, root))
    folder = Path(download_dir).expanduser() if download_dir else None
    for title in config.lora_resolver:
        reference = plugins.pick("adapter resolver", title, HOOK)
        resolvers.append(partial(_from_plugin, plugins, title, reference, folder))
    return resolvers


def _from_plugin(
    plugins: PluginManager, title: str, reference: str, folder: Path | None, name: str
) -> Path | None:
    with blaming_plugin(plugins, HOOK, title):
        path = resolve_lazy(reference)(name, folder)
        return None if path is None else Path(path)


def _answer(name: str, error: Exception, is_found: bool) -> ApiError:
    """Say what a client may know of a failure: no path of the server, and no word of a plugin.

    Args:
        name: Of the adapter.
        error: What went wrong.
        is_found: Whether a resolver had given its folder.
    """
    if isinstance(error, RequestError):
        return ApiError("invalid_value", f"adapter {name!r}: {error}", "model")
    if is_found and isinstance(error, CheckpointError):
        message = f"adapter {name!r} is broken or does not fit the model; the server's log says why"
        return ApiError("invalid_value", message, "model")
    message = f"adapter {name!r} cannot be had now; the server's log says why"
    return ApiError("adapter_not_ready", message, "model", retry_after_s=RETRY_S)
