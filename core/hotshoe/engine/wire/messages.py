"""What the two halves of an engine say to each other: commands one way, news the other.

Within a process the objects themselves are handed over; between processes they travel as
MessagePack. Reading makes only the types below and never runs anything that it reads. An error
travels as the name of its class, so that it is raised anew as what it was.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec import Struct

from hotshoe import __version__, errors
from hotshoe.engine.client import EngineInfo
from hotshoe.errors import EngineError, HotshoeError
from hotshoe.types import Pooling, SamplingParams, TokenOutput

#: Counts incompatible changes of this page; both sides must have the same.
PROTOCOL = 4


class Side(Struct, array_like=True, frozen=True):
    """What one side of a connection is."""

    version: str = __version__
    protocol: int = PROTOCOL


class WireError(Struct, array_like=True, frozen=True):
    """A deliberate exception: class name, message, and further attributes such as `field`."""

    kind: str
    message: str
    details: dict[str, Any] = {}

    @classmethod
    def wrap(cls, error: BaseException) -> WireError:
        """Describe an error; one that is not deliberate becomes an EngineError."""
        kinds = (c.__name__ for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c)
        kind = next(kinds, None)
        if kind is None:
            return cls(EngineError.__name__, f"{type(error).__name__}: {error}")
        details = {name: value for name, value in vars(error).items() if not name.startswith("_")}
        return cls(kind, str(error), details)

    def unwrap(self) -> HotshoeError:
        """Make the error anew."""
        kind = getattr(errors, self.kind)
        assert issubclass(kind, HotshoeError)
        error: HotshoeError = kind(self.message, **self.details)
        return error


# Commands: from a front end to the engine.


class Hello(Struct, array_like=True, tag=True):
    """Opens a connection; `Welcome` answers."""

    side: Side


class Add(Struct, array_like=True, tag=True):
    """A request: one sequence for each of `ids`, all from the same prompt.

    `ids` are unique among the unfinished sequences of their front end, which numbers its additions
    upwards from 1. `pooling` and `embeds` are those of `NewRow`.
    """

    ids: list[str]
    token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    tenant: str | None = None
    number: int = 0
    pooling: Pooling | None = None
    embeds: bytes | None = None


class Abort(Struct, array_like=True, tag=True):
    """Drop sequences. Unknown ids are ignored; no news follows for any."""

    ids: list[str]


class Call(Struct, array_like=True, tag=True):
    """Call a method of the loop by name; `Reply` answers."""

    number: int
    verb: str
    arguments: dict[str, Any] = {}


Command = Hello | Add | Abort | Call


# News: from the engine to a front end.


class Welcome(Struct, array_like=True, tag=True):
    """Answers `Hello`."""

    side: Side
    info: EngineInfo


class Batch(Struct, array_like=True, tag=True):
    """Everything that one step brought to one front end; `time_s` is when the step ended."""

    outputs: list[TokenOutput]
    time_s: float


class Refused(Struct, array_like=True, tag=True):
    """No sequence of an `Add` was queued; `id` is the first of its `ids`."""

    id: str
    error: WireError


class Reply(Struct, array_like=True, tag=True):
    """Answers `Call`."""

    number: int
    result: Any = None
    error: WireError | None = None


class State(Struct, array_like=True, tag=True):
    """What has changed for all front ends.

    Attributes:
        is_paused: As `EngineClient` says.
        is_sleeping: Likewise.
        room: How many sequences may come before the queue is full, perhaps infinity.
        retry_after_s: When to come back while there is no room.
        last_add: Number of this front end's last `Add` that `room` counts.
    """

    is_paused: bool = False
    is_sleeping: bool = False
    room: float = math.inf
    retry_after_s: float = 1.0
    last_add: int = 0


class Unwanted(Struct, array_like=True, tag=True):
    """Every front end is to abort its requests of these ids; None: all that it has."""

    ids: list[str] | None


class Heartbeat(Struct, array_like=True, tag=True):
    """A sign of life, sent by a thread of its own: the present step has taken `busy_s` so far."""

    num_steps: int
    busy_s: float


class Resting(Struct, array_like=True, tag=True):
    """The engine sleeps at this level; None: it is awake. Meant for who may start another one."""

    level: int | None


class Dead(Struct, array_like=True, tag=True):
    """The engine has stopped; nothing follows."""

    error: WireError


News = Welcome | Batch | Refused | Reply | State | Unwanted | Heartbeat | Resting | Dead


# Between a process and the engine process that it has started, over their private channel, which
# carries heartbeats as well.


class Start(Struct, array_like=True, tag=True):
    """Build the engine of this configuration, after so many that died, and listen at a socket.

    It serves asleep where the last one has said that it was `Resting`.
    """

    side: Side
    config: dict[str, Any]
    socket_path: str
    num_restarts: int = 0
    sleep_level: int | None = None


class Ready(Struct, array_like=True, tag=True):
    """The engine listens."""


FromEngine = Ready | Heartbeat | Resting | Dead

#: What decoding raises at bytes that are none of these messages.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_news = msgspec.msgpack.Decoder(News).decode
decode_start = msgspec.msgpack.Decoder(Start).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def not_understood(error: Exception) -> WireError:
    """Describe a message that is none of this page."""
    text = f"the other side speaks another language: {error}; install the same version for both"
    return WireError(errors.ConfigError.__name__, text)


def check_side(mine: Side, theirs: Side) -> None:
    """Refuse to talk to another version.

    Raises:
        ConfigError: With both sides named.
    """
    if mine != theirs:
        raise errors.ConfigError(
            f"this side is hotshoe {mine.version} with protocol {mine.protocol}, the other one "
            f"hotshoe {theirs.version} with protocol {theirs.protocol}; "
            "install the same version for both"
        )
