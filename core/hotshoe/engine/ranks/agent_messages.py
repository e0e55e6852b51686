"""What an engine core and the agents of its hosts say to each other, as MessagePack.

An agent says `Hello`, hears `Begin`, and from then on both pass on what ranks are told and say.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from hotshoe.engine.wire.messages import Side


class Hello(Struct, array_like=True, tag=True):
    """An agent is there.

    Attributes:
        node: Its number.
        host: Equal for agents whose ranks can meet in a folder and see each other's processes.
        directory: Such a folder.
        address: Where ranks of other hosts would reach one of its own, `HOST:PORT`.
        pid: Of the agent.
    """

    side: Side
    node: int
    host: str
    directory: str
    address: str
    pid: int


class Begin(Struct, array_like=True, tag=True):
    """Start ranks `first`, `first + 1`, ..., each with its message, of `size` in all.

    They meet in `directory`: that of `Hello`, or of another agent of this host.
    """

    size: int
    first: int
    directory: str
    messages: list[bytes]


class ToRank(Struct, array_like=True, tag=True):
    """Pass a message on."""

    rank: int
    message: bytes


class End(Struct, array_like=True, tag=True):
    """End all ranks, within so many seconds if they do so by themselves."""

    leave_s: float


class FromRank(Struct, array_like=True, tag=True):
    """A rank has said something."""

    rank: int
    message: bytes


class Gone(Struct, array_like=True, tag=True):
    """A rank has gone, or cannot be started; `ending` says how."""

    rank: int
    ending: str


ToAgent = Begin | ToRank | End
FromAgent = Hello | FromRank | Gone

encode = msgspec.msgpack.Encoder().encode
decode_to = msgspec.msgpack.Decoder(ToAgent).decode
decode_from = msgspec.msgpack.Decoder(FromAgent).decode
