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

from hotshoe.engine.client import EngineInfo, EngineStats, PauseMode, SleepMode
from hotshoe.engine.core.engine_core import EngineCore
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
    Resting,
    Side,
    State,
    Unwanted,
    Welcome,
    WireError,
    check_side,
)
from hotshoe.errors import ConfigError, EngineDeadError, EngineError, UserError
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
        self._core = core
        self._info = info
        self._port = port
        self._owners: dict[str, tuple[int, str]] = {}
        self._state = State()
        self._last_adds: dict[int, int] = {}  # number of each front end's last addition
        self._sleep_level: int | None = None
        self._has_added = False  # since the state was told
        self._stopping = threading.Event()
        # Calls that wait for the core to be quiet: front end, number, and what is to be done then.
        self._pausing: list[tuple[int, int, Callable[[], object]]] = []
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            Hello: self._hello,
            Add: self._add,
            Abort: self._abort,
            Call: self._call,
        }
        # Verbs that return what remains to be done once the core is quiet.
        self._waiting_verbs: dict[str, Callable[..., Callable[[], object]]] = {
            "pause": self._pause,
            "sleep": self._sleep,
        }
        self._verbs: dict[str, Callable[..., Any]] = {
            "stats": self._stats,
            "abort_everywhere": self._abort_everywhere,
            "resume": self._resume,
            "wake_up": self._wake_up,
            "update_weights": self._update_weights,
            "load_adapter": core.load_adapter,
            "unload_adapter": core.unload_adapter,
            "adapters": core.adapters.paths,
            "reset_prefix_cache": core.reset_prefix_cache,
            "start_profile": core.start_profile,
            "stop_profile": core.stop_profile,
        }

    def run(self) -> None:
        """Step whenever there is work; return after `stop`.

        Raises:
            EngineDeadError: The core has failed; every front end has been told.
        """
        beating = threading.Thread(target=self._beat, name="hotshoe-heartbeat", daemon=True)
        beating.start()
        dead = EngineDeadError("the engine was closed")
        self._state = State(is_sleeping=self._core.is_sleeping)  # perhaps from the start
        try:
            while not self._stopping.is_set():
                for peer, command in self._port.receive(0.0 if self._core.has_work() else IDLE_S):
                    self._take(peer, command)
                if self._core.has_work():
                    self._emit(self._timed(self._core.step))
                self._settle()
        except EngineDeadError as error:
            LOG.error("%s", error, exc_info=error.__cause__)
            dead = error
            raise
        except BaseException as error:  # nobody can interrupt this thread; a library may try to
            dead = EngineDeadError(f"the engine has stopped: {cause_of(error)}")
            LOG.error("%s", dead, exc_info=error)
            raise dead from error
        finally:
            self._stopping.set()
            beating.join()
            self._port.broadcast(Dead(WireError.wrap(dead)))

    def stop(self) -> None:
        """Let `run` return after the present step. May be called from anywhere."""
        self._stopping.set()
        self._port.wake()

    def lie_down(self, level: int) -> None:
        """Let the engine sleep, and say so to who may start another one."""
        self._core.sleep(level)
        self._rest(max(level, self._sleep_level or 0))

    def _beat(self) -> None:
        interval_s = min(ENGINE.beat_s, self._info.config.engine_stall_timeout_s / 4)
        while not self._stopping.wait(interval_s):
            self._port.broadcast(Heartbeat(self.clock.num_steps, self.clock.tick(interval_s)))

    def _timed(self, work: Callable[[], list[TokenOutput]]) -> list[TokenOutput]:
        """Do what may take a step's time, with the clock running."""
        self.clock.is_running = True
        try:
            return work()
        finally:
            self.clock.is_running = False
            self.clock.num_steps += 1

    def _emit(self, outputs: Iterable[TokenOutput]) -> None:
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
            self._port.send(peer, Batch(batch, time_s))

    def _settle(self) -> None:
        """Answer what waited for quiet, and tell everybody what has changed."""
        if self._pausing and not self._core.has_work():
            calls, self._pausing = self._pausing, []
            for peer, number, finish in calls:
                self._answer(peer, number, finish)
        self._announce()

    def _announce(self) -> None:
        core, old = self._core, self._state
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
        self._port.send(peer, replace(self._state, last_add=self._last_adds[peer]))

    def _reply(self, peer: int, reply: Reply) -> None:
        self._announce()  # so that who gets the reply knows the state it brought
        self._port.send(peer, reply)

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
            self._port.send(peer, Dead(WireError.wrap(error)))
            return
        self._port.send(peer, Welcome(Side(), self._info))
        self._last_adds[peer] = 0
        self._tell_state(peer)

    def _add(self, peer: int, new: Add) -> None:
        ids = new.ids
        new.ids = [_scoped(peer, i) for i in ids]
        self._last_adds[peer], self._has_added = new.number, True
        try:
            self._core.add(new)
        except UserError as error:
            self._port.send(peer, Refused(ids[0], WireError.wrap(error)))
        else:
            self._owners.update(zip(new.ids, ((peer, i) for i in ids), strict=True))

    def _abort(self, peer: int, command: Abort) -> None:
        self._drop([_scoped(peer, i) for i in command.ids])

    def _drop(self, ids: Iterable[str]) -> None:
        for request_id in ids:
            self._owners.pop(request_id, None)
            self._core.abort((request_id,))

    def _call(self, peer: int, call: Call) -> None:
        waiting = self._waiting_verbs.get(call.verb)
        if waiting is None:
            self._answer(peer, call.number, lambda: self._verbs[call.verb](**call.arguments))
            return
        try:
            finish = waiting(**call.arguments)
        except EngineDeadError:
            raise
        except Exception as error:
            self._reply(peer, Reply(call.number, error=WireError.wrap(error)))
        else:
            self._pausing.append((peer, call.number, finish))

    def _answer(self, peer: int, number: int, work: Callable[[], object]) -> None:
        """Do what was asked for, and reply."""
        reply = Reply(number)
        try:
            reply.result = work()
        except EngineDeadError:
            raise
        except Exception as error:  # the caller's mistake; the engine goes on
            reply.error = WireError.wrap(error)
        self._reply(peer, reply)

    def _stats(self) -> EngineStats:
        return self._core.stats()

    def _abort_everywhere(self, request_ids: list[str] | None) -> None:
        """Let every front end abort requests: only they know which sequences these have."""
        self._port.broadcast(Unwanted(request_ids))

    def _pause(self, mode: PauseMode, clear_cache: bool) -> Callable[[], object]:
        """Begin to pause; return what remains once the core is quiet."""
        self._emit(self._timed(lambda: self._core.pause(mode)))
        if mode == "abort":
            self._abort_all()

        def finish() -> None:
            if clear_cache:
                self._core.reset_prefix_cache(reset_running=True)

        return finish

    def _sleep(self, level: int, mode: SleepMode) -> Callable[[], object]:
        """Begin to fall asleep; return what remains once the core is quiet."""
        core = self._core
        core.check_sleep(level, mode)
        was_paused = core.is_paused
        if mode == "abort":
            self._abort_all()
        elif mode == "wait" and not was_paused:
            core.pause("wait")

        def finish() -> None:
            self._emit(self._timed(core.quiesce))
            try:
                self.lie_down(level)
            finally:
                if mode == "wait" and not was_paused:
                    core.resume()  # sleep holds requests back from now on

        if mode == "wait":
            return finish
        finish()
        return lambda: None

    def _wake_up(self, tags: list[str] | None) -> None:
        self._core.wake_up(tags)
        if not self._core.is_sleeping:
            self._rest(None)

    def _rest(self, level: int | None) -> None:
        self._sleep_level = level
        self._port.broadcast(Resting(level))

    def _update_weights(self, path: str) -> None:
        self._emit(self._timed(self._core.quiesce))
        self._core.update_weights(path)

    def _abort_all(self) -> None:
        ids = list(self._owners)
        self._core.abort(ids)
        self._emit(TokenOutput(i, [], finish_reason=FinishReason.ABORT) for i in ids)

    def _resume(self) -> None:
        self._core.resume()
        calls, self._pausing = self._pausing, []
        error = WireError.wrap(EngineError("resume was called before the pause was complete"))
        for peer, number, _ in calls:
            self._reply(peer, Reply(number, error=error))


def _scoped(peer: int, request_id: str) -> str:
    return f"{peer}/{request_id}"
