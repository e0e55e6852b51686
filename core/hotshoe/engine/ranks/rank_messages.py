"""What an engine core and its ranks say to each other, as MessagePack; nothing is unpickled.

The core speaks to all ranks alike, so a message is encoded once. Every rank answers, but to `Step`
one alone does, of those that sample: the others of them would say the same. `Failed` may come at
any time and is the last thing that a rank says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from hotshoe.engine.wire.messages import Side, WireError
from hotshoe.executor import Seat, WorkerInfo
from hotshoe.slots import Decision, Slot, Verdict
from hotshoe.types import CacheLayout, StepPlan, StepResult


class Join(Struct, array_like=True):
    """Comes first: what to build, and where to meet.

    Attributes:
        config: Resolved.
        plugins: Name and version of all that the core's side has.
        seat: Which rank hears it, and where it meets the others.
    """

    side: Side
    config: dict[str, Any]
    eos_token_ids: tuple[int, ...]
    plugins: list[tuple[str, str]]
    seat: Seat


class Allocate(Struct, array_like=True, tag=True):
    """Take memory for the KV cache: so many blocks in each pool."""

    num_blocks: list[int]


class Step(Struct, array_like=True, tag=True):
    """Compute a step."""

    plan: StepPlan


class Profile(Struct, array_like=True, tag=True):
    """Begin to record steps, or, without a folder, write what was recorded."""

    folder: str | None = None


class ChangeWeights(Struct, array_like=True, tag=True):
    """Move the weights to host memory or back, or overwrite them with those at a path.

    "check" refuses whatever "update" would refuse, and changes nothing; so does "check_adapter"
    for "load_adapter". Adapters are loaded from a path under a name, or dropped.
    """

    action: Literal[
        "offload",
        "restore",
        "check",
        "update",
        "check_adapter",
        "load_adapter",
        "drop_adapter",
    ]
    path: str = ""
    name: str = ""


class Leave(Struct, array_like=True, tag=True):
    """Release everything and end."""


RankCommand = Allocate | Step | Profile | ChangeWeights | Leave


class WireDecision(Struct, array_like=True):
    """A decision; the slot says how its specification is to be read."""

    slot: str
    spec: Raw
    chosen: str
    score: int
    reason: str
    others: tuple[tuple[str, Verdict], ...]


class Loaded(Struct, array_like=True, tag=True):
    """The model is there. `info` is a WorkerInfo without its decisions."""

    info: dict[str, Any]
    decisions: list[WireDecision]

    @classmethod
    def wrap(cls, info: WorkerInfo) -> Loaded:
        """Describe what a worker found."""
        fields = {name: getattr(info, name) for name in info.__slots__ if name != "decisions"}
        decisions = [
            WireDecision(d.slot, Raw(encode(d.spec)), d.chosen, d.score, d.reason, d.others)
            for d in info.decisions
        ]
        return cls(fields, decisions)

    def unwrap(self, slots: Mapping[str, Slot]) -> WorkerInfo:
        """Return what the worker found; the slots say how specifications are to be read."""
        decode = msgspec.msgpack.decode
        decisions = tuple(
            Decision(
                d.slot,
                decode(d.spec, type=slots[d.slot].spec_type),
                d.chosen,
                d.score,
                d.reason,
                d.others,
            )
            for d in self.decisions
        )
        caches = msgspec.convert(self.info["caches"], CacheLayout | None)
        return WorkerInfo(**{**self.info, "caches": caches}, decisions=decisions)


class Obeyed(Struct, array_like=True, tag=True):
    """A command other than `Step` has been carried out, or refused without harm.

    `name` is that of the file that a profile was written to.
    """

    name: str = ""
    error: WireError | None = None


class Done(Struct, array_like=True, tag=True):
    """A step has come to an end."""

    result: StepResult


class Failed(Struct, array_like=True, tag=True):
    """The rank ends."""

    error: WireError


RankNews = Loaded | Obeyed | Done | Failed

encode = msgspec.msgpack.Encoder().encode
decode_join = msgspec.msgpack.Decoder(Join).decode
decode_command = msgspec.msgpack.Decoder(RankCommand).decode
decode_news = msgspec.msgpack.Decoder(RankNews).decode
