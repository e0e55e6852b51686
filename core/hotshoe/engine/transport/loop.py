"""Runs an engine core for front ends: takes commands between steps, sends what each step brought.

One loop for every transport. A port carries commands and news; who is at its other end, and
whether that is another process, the loop does not know. Requests are scoped by front end: two may
use the same ids, and what a front end has asked for ends when it goes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from hotshoe.engine.client import EngineInfo
from hotshoe.engine.core.engine_core import EngineCore
from hotshoe.engine.transport.calls import Calls
from hotshoe.engine.wire.children import ENGINE
from hotshoe.engine.wire.messages import (
    Abort,
    Add,
    Batch,
    Call,
    Command,
    Dead,
    Heartbeat,
    Hello,
    News,
    Refused,
    Reply,
    Side,
    State,
    Welcome,
    WireError,
    check_side,
)
from hotshoe.errors import ConfigError, EngineDeadError, HotshoeError, UserError
from hotshoe.foreign import cause_of
from hotshoe.types import FinishReason, TokenOutput

LOG = logging.getLogger(__name__)
IDLE_S = 1.0


class Port(Protocol):
    """Where commands come from and news goes to. Front ends are numbered."""

    def receive(self, timeout_s: float) -> list[tuple[int, Command | None]]:
        """Return what has come, waiting that long for the first; None: this front end has gone."""
        ...

    def send(self, peer: int, news: News) -> None:
        """Send to a front end, without waiting for it; one that has gone misses nothing."""
        ...

    def broadcast(self, news: News) -> None:
        """Send to everybody. May be called from any thread."""
        ...

    def wake(self) -> None:
        """Let `receive` return. May be called from any thread and from signal handlers."""
        ...


@dataclass(slots=True)
class StepClock:
    """How many steps have ended, and how long the present one has been seen to run.

    Time passes with `tick` alone: while a whole machine is suspended, no step is stuck.
    """

    num_steps: int = 0
    is_running: bool = False
    _seen: int = -1
    _busy_s: float = 0.0

    def tick(self, seconds: float) -> float:
        """Return how long the present step has taken, so many seconds after the last tick."""
        same = self.is_running and self._seen == self.num_steps
        self._busy_s = self._busy_s + seconds if same else 0.0
        self._seen = self.num_steps
        return self._busy_s


class EngineLoop:
    """Steps a core until `stop`.

    Args:
        core: Owned by the thread that calls `run`.
        info: What `Welcome` tells a front end.
        port: Commands and news.
    """

    def __init__(self, core: EngineCore, info: EngineInfo, port: Port) -> None:
        self.clock = StepClock()
        self.core = core
        self._info = info
        self.port = port
        self._owners: dict[str, tuple[int, str]] = {}
        self._state = State()
        self._last_adds: dict[int, int] = {}  # number of each front end's last addition
        self._has_added = False  # since the state was told
        self._stopping = threading.Event()
        self._calls = Calls(self)
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            Hello: self._hello,
            Add: self._add,
            Abort: self._abort,
            Call: self._calls.take,
        }

    def run(self) -> None:
        """Step whenever there is work; return after `stop`.

        Raises:
            EngineDeadError: The core has failed; every front end has been told.
        """
        beating = threading.Thread(target=self._beat, name="hotshoe-heartbeat", daemon=True)
        beating.start()
        dead = EngineDeadError("the engine was closed")
        self._state = State(is_sleeping=self.core.is_sleeping)  # perhaps from the start
        try:
            while not self._stopping.is_set():
                for peer, command in self.port.receive(0.0 if self.core.has_work() else IDLE_S):
                    self._take(peer, command)
                if self.core.has_work():
                    self.emit(self.timed(self.core.step))
                self._settle()
        except EngineDeadError as error:
            told = isinstance(cause := error.__cause__, HotshoeError) and cause.__cause__ is None
            LOG.error("%s", error, exc_info=None if told else cause)
            dead = error
            raise
        except BaseException as error:  # nobody can interrupt this thread; a library may try to
            dead = EngineDeadError(f"the engine has stopped: {cause_of(error)}")
            LOG.error("%s", dead, exc_info=error)
            raise dead from error
        finally:
            self._stopping.set()
            beating.join()
            self.port.broadcast(Dead(WireError.wrap(dead)))

    def stop(self) -> None:
        """Let `run` return after the present step. May be called from anywhere."""
        self._stopping.set()
        self.port.wake()

    def _beat(self) -> None:
        interval_s = min(ENGINE.beat_s, self._info.config.engine_stall_timeout_s / 4)
        while not self._stopping.wait(interval_s):
            self.port.broadcast(Heartbeat(self.clock.num_steps, self.clock.tick(interval_s)))

    def timed(self, work: Callable[[], list[TokenOutput]]) -> list[TokenOutput]:
        """Do what may take a step's time, with the clock running."""
        self.clock.is_running = True
        try:
            return work()
        finally:
            self.clock.is_running = False
            self.clock.num_steps += 1

    def emit(self, outputs: Iterable[TokenOutput]) -> None:
        """Send outputs to those who asked for them, one message for each."""
        time_s = time.monotonic()
        batches: dict[int, list[TokenOutput]] = {}
        for output in outputs:
            owner = self._owners.get(output.request_id)
            if owner is None:
                continue
            if output.finish_reason is not None:
                del self._owners[output.request_id]
            peer, output.request_id = owner
            batches.setdefault(peer, []).append(output)
        for peer, batch in batches.items():
            self.port.send(peer, Batch(batch, time_s))

    def _settle(self) -> None:
        """Answer what waited for quiet, and tell everybody what has changed."""
        if self._calls.waiting and not self.core.has_work():
            self._calls.finish()
        self._announce()

    def _announce(self) -> None:
        core, old = self.core, self._state
        state = State(core.is_paused, core.is_sleeping, core.room(), core.retry_after_s)
        # Front ends take from the room what they have sent: say which of it the room counts.
        counted = self._has_added and state.room < math.inf
        self._has_added = False
        if counted or (state.is_paused, state.is_sleeping, state.room) != (
            old.is_paused,
            old.is_sleeping,
            old.room,
        ):
            self._state = state
            for peer in self._last_adds:
                self._tell_state(peer)

    def _tell_state(self, peer: int) -> None:
        self.port.send(peer, replace(self._state, last_add=self._last_adds[peer]))

    def reply(self, peer: int, reply: Reply) -> None:
        """Answer a call."""
        self._announce()  # so that who gets the reply knows the state it brought
        self.port.send(peer, reply)

    def abort_all(self) -> None:
        """End what runs, for everybody."""
        ids = list(self._owners)
        self.core.abort(ids)
        self.emit(TokenOutput(i, [], finish_reason=FinishReason.ABORT) for i in ids)

    def lie_down(self, level: int) -> None:
        """Let the engine sleep, and say so to who may start another one."""
        self._calls.lie_down(level)

    # What front ends ask for.

    def _take(self, peer: int, command: Command | None) -> None:
        if command is None:
            self._last_adds.pop(peer, None)
            self._drop([i for i, (owner, _) in self._owners.items() if owner == peer])
        else:
            self._handlers[type(command)](peer, command)

    def _hello(self, peer: int, hello: Hello) -> None:
        try:
            check_side(Side(), hello.side)
        except ConfigError as error:
            self.port.send(peer, Dead(WireError.wrap(error)))
            return
        self.port.send(peer, Welcome(Side(), self._info))
        self._last_adds[peer] = 0
        self._tell_state(peer)

    def _add(self, peer: int, new: Add) -> None:
        ids = new.ids
        new.ids = [_scoped(peer, i) for i in ids]
        self._last_adds[peer], self._has_added = new.number, True
        try:
            self.core.add(new)
        except UserError as error:
            self.port.send(peer, Refused(ids[0], WireError.wrap(error)))
        else:
            self._owners.update(zip(new.ids, ((peer, i) for i in ids), strict=True))

    def _abort(self, peer: int, command: Abort) -> None:
        self._drop([_scoped(peer, i) for i in command.ids])

    def _drop(self, ids: Iterable[str]) -> None:
        for request_id in ids:
            self._owners.pop(request_id, None)
            self.core.abort((request_id,))


def _scoped(peer: int, request_id: str) -> str:
    return f"{peer}/{request_id}"
