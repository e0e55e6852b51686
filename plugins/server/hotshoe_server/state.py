"""What all endpoints of one server share, once the engine is ready."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotshoe import __version__
from hotshoe.engine.client import EngineClient
from hotshoe.text.parsing import ParserFormat
from hotshoe_server.config import ServerConfig
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Answered, RequestObserver, RequestRecord
from hotshoe_server.renderer import Renderer
from hotshoe_server.store import Store

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
class ServerState:
    """One server.

    Attributes:
        config: The server's own configuration; the engine's is `client.config`.
        client: The engine.
        models: Names that requests may use; the first is the one answers carry.
        tool_format: How the model writes tool calls; None when nobody knows.
        reasoning_format: How it writes reasoning sections.
        observers: Hear of every engine request.
        answered: Called with the method, the route's path and the status of every HTTP answer.
        in_flight: Running engine requests by id.
        num_open: HTTP requests under way, but for those that only read.
        draining: SIGTERM came: nothing new is taken.
        reading: How long bodies that are being read may still take to arrive.
        body_bytes: Of all bodies of requests under way, as far as they have come.
        shared: What ties this process to others; None when there is one alone.
        turn_away: Refuses a request by its head alone, see `hotshoe_server.doorman`; None while
            the application hears of every request.
        created_s: When it started, in seconds since the epoch.
        fingerprint: Differs where the same seed may give another text: of version, options, device.
    """

    config: ServerConfig
    client: EngineClient
    renderer: Renderer
    models: Sequence[str]
    store: Store
    tool_format: ParserFormat | None = None
    reasoning_format: ParserFormat | None = None
    observers: list[RequestObserver] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    in_flight: dict[str, RequestRecord] = field(default_factory=dict)
    num_open: int = 0
    draining: bool = False
    reading: set[asyncio.Timeout] = field(default_factory=set)
    body_bytes: int = 0
    shared: Shared | None = None
    turn_away: TurnAway | None = None
    created_s: int = field(default_factory=lambda: int(time.time()))
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        info = self.client.info
        parts = repr((__version__, info.config, info.facts, info.decisions)).encode()
        self.fingerprint = f"fp_{hashlib.blake2b(parts, digest_size=6).hexdigest()}"

    @property
    def max_body_bytes(self) -> int:
        """The longest body: as configured, or what a conversation that fills the context takes."""
        given, length = self.config.max_body_bytes, self.client.info.max_model_len
        return given or BODY_BASE_BYTES + BODY_TOKEN_BYTES * length

    def adapter(self, name: str) -> str | None:
        """Return the adapter that answers under a name from `model_name`; None for the model."""
        own = name in self.models or name == self.client.config.model
        return None if own else name

    def model_name(self, asked: str | None) -> str:
        """Return the name to answer under; a request that names no model gets the one there is.

        Raises:
            ApiError: There is no such model.
        """
        if asked is None or asked in self.models:
            return asked or self.models[0]
        if asked == self.client.config.model and not self.config.served_model_name:
            return asked  # a directory by its path, which is listed nowhere
        if self.client.config.enable_lora:
            return asked  # the engine says whether an adapter of this name is loaded
        raise ApiError(
            "model_not_found",
            f"there is no model {asked!r} here, only {', '.join(self.models)}",
            "model",
        )
