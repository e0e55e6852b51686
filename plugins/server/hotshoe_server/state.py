"""What all endpoints of one server share, once the engine is ready."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hotshoe import __version__
from hotshoe.engine.client import EngineClient
from hotshoe.errors import EngineDeadError, QueueFullError
from hotshoe.text.parsing import ParserFormat
from hotshoe_server.config import ServerConfig
from hotshoe_server.errors import ApiError, unknown_model
from hotshoe_server.extensions import Answered, RequestObserver, RequestRecord
from hotshoe_server.renderer import Renderer
from hotshoe_server.store import Store

if TYPE_CHECKING:
    from hotshoe_server.fleet import Fleet

#: What a body may have beside its text, such as schemas; and for each token of the context. A token
#: of eight characters, all of them escaped, takes 48 bytes.
BODY_BASE_BYTES, BODY_TOKEN_BYTES = 4 * 2**20, 64
#: Takes the target and the headers of a POST, and says how to refuse it, if at all.
TurnAway = Callable[[bytes, Sequence[tuple[bytes, bytes]]], ApiError | None]


@dataclass(frozen=True, slots=True)
class Shared:
    """What one of several API processes has in common with the others.

    Attributes:
        process: Which of `config.api_processes` this is, from 0.
        file: Descriptor of a nameless file, for who counts over all of them.
        store: Leads to the store of responses; see `hotshoe_server.store_link`.
    """

    process: int
    file: int
    store: socket.socket


@dataclass(slots=True)
class Served:
    """One model of a server.

    Attributes:
        config: The server's configuration, as it is for this model.
        client: The model's engine; the engine's configuration is `client.config`.
        names: Names that requests may use; the first is the one answers carry.
        tool_format: How the model writes tool calls; None when nobody knows.
        reasoning_format: How it writes reasoning sections.
        created_s: When it came, in seconds since the epoch.
        adapters: Names of its adapters, as far as this server has heard.
        num_open: Requests that run on it or wait for it.
        used_s: When the last of them ended, in seconds of `time.monotonic()`.
        fingerprint: Differs where the same seed may give another text: of version, options, device.
    """

    config: ServerConfig
    client: EngineClient
    renderer: Renderer
    names: Sequence[str]
    tool_format: ParserFormat | None = None
    reasoning_format: ParserFormat | None = None
    created_s: int = field(default_factory=lambda: int(time.time()))
    adapters: set[str] = field(default_factory=set)
    num_open: int = 0
    used_s: float = field(default_factory=time.monotonic)
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        info = self.client.info
        self.adapters.update(info.config.lora_modules)
        parts = repr((__version__, info.config, info.facts, info.decisions)).encode()
        self.fingerprint = f"fp_{hashlib.blake2b(parts, digest_size=6).hexdigest()}"

    @property
    def name(self) -> str:
        """The name that answers carry."""
        return self.names[0]

    def is_called(self, asked: str) -> bool:
        """Return whether a name is the model's own, and no adapter's."""
        path = self.client.config.model  # a directory by its path, which is listed nowhere
        return asked in self.names or (asked == path and not self.config.served_model_name)

    def adapter(self, name: str) -> str | None:
        """Return the adapter that answers under a name; None for the model."""
        own = name in self.names or name == self.client.config.model
        return None if own else name


@dataclass(slots=True)
class ServerState:
    """One server.

    Attributes:
        config: The server's own configuration.
        models: Those that are served, by name; requests that name none get the first.
        observers: Hear of every engine request.
        answered: Hear of every HTTP answer, see `hotshoe_server.extensions.Answered`.
        in_flight: Running engine requests by id.
        num_open: HTTP requests under way, but for those that only read, and `background`.
        background: What makes responses that nobody waits for.
        draining: SIGTERM came: nothing new is taken.
        reading: How long bodies that are being read may still take to arrive.
        body_bytes: Of all bodies of requests under way, as far as they have come.
        shared: What ties this process to others; None when there is one alone.
        turn_away: Refuses a request by its head alone, see `hotshoe_server.admission`; None while
            the application hears of every request.
        fleet: Changes which models there are, and who sleeps; None where that cannot be.
    """

    config: ServerConfig
    models: dict[str, Served]
    store: Store
    observers: list[RequestObserver] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    in_flight: dict[str, RequestRecord] = field(default_factory=dict)
    num_open: int = 0
    background: set[asyncio.Task[None]] = field(default_factory=set)
    draining: bool = False
    reading: set[asyncio.Timeout] = field(default_factory=set)
    body_bytes: int = 0
    shared: Shared | None = None
    turn_away: TurnAway | None = None
    fleet: Fleet | None = None

    @property
    def default(self) -> Served:
        """The first model."""
        return next(iter(self.models.values()))

    @property
    def client(self) -> EngineClient:
        """The engine of the first model."""
        return self.default.client

    @property
    def names(self) -> list[str]:
        """All names of models."""
        return [name for served in self.models.values() for name in served.names]

    @property
    def max_model_len(self) -> int:
        """The longest sequence of any model."""
        return max(served.client.config.max_model_len for served in self.models.values())

    @property
    def max_body_bytes(self) -> int:
        """The longest body: as configured, or what a conversation that fills the context takes."""
        return self.config.max_body_bytes or BODY_BASE_BYTES + BODY_TOKEN_BYTES * self.max_model_len

    def find(self, asked: str | None) -> Served:
        """Return the model that a request names, itself or by an adapter of it.

        Raises:
            ApiError: There is no such model.
        """
        if asked is None:
            return self.default
        models = self.models.values()
        found = next((one for one in models if one.is_called(asked)), None) or self.holder(asked)
        if found is None:
            adapters = (name for one in models for name in sorted(one.adapters))
            raise unknown_model(asked, [*self.names, *adapters])
        return found

    def holder(self, adapter: str) -> Served | None:
        """Return the model of an adapter; None for a name that nobody knows, which wakes nobody."""
        if self.shared is not None and self.client.config.enable_lora:
            return self.default  # its engine alone knows what other processes have loaded
        return next((one for one in self.models.values() if adapter in one.adapters), None)

    def named(self, asked: str | None) -> Served:
        """Return the model that an operator names by one of its own names, or the only one.

        Raises:
            ApiError: There is no such model, or several and none is named.
        """
        if asked is None and len(self.models) > 1:
            message = f"there are several models here; name one of {', '.join(self.names)}"
            raise ApiError("missing_required_parameter", message, "model")
        for served in self.models.values():
            if asked is None or served.is_called(asked):
                return served
        raise unknown_model(asked, self.names)

    @contextlib.asynccontextmanager
    async def held(self, served: Served) -> AsyncIterator[None]:
        """Run a request on a model that is awake, and stays so meanwhile.

        Raises:
            ApiError: As for `Fleet.woken`.
            EngineDeadError: Likewise.
        """
        served.num_open += 1
        try:
            if self.fleet is not None:
                await self.fleet.woken(served)
            yield
        finally:
            served.num_open -= 1
            served.used_s = time.monotonic()

    def check_queue(self) -> None:
        """Refuse a request before its model is known, if every engine would refuse it now.

        Raises:
            QueueFullError: Too many requests wait.
            EngineDeadError: The engine has stopped, or does not answer.
        """
        *others, last = self.models.values()
        for served in others:
            with contextlib.suppress(QueueFullError, EngineDeadError):
                return served.client.check_queue()
        return last.client.check_queue()
