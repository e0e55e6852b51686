"""What operators ask of a running engine: to pause, to sleep, to change weights, to say how it is.

`EngineLoop` hands calls on between steps. Some wait until the core is quiet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hotshoe.engine.client import PauseMode, SleepMode
from hotshoe.engine.wire.messages import Call, Reply, Resting, Unwanted, WireError
from hotshoe.errors import EngineDeadError, EngineError

if TYPE_CHECKING:
    from hotshoe.engine.transport.loop import EngineLoop


class Calls:
    """Carries out calls of front ends.

    Args:
        loop: Whose core is asked.

    Attributes:
        waiting: Calls that wait for quiet: front end, number, and what is to be done then.
    """

    def __init__(self, loop: EngineLoop) -> None:
        self._loop, self._core = loop, loop.core
        self.waiting: list[tuple[int, int, Callable[[], object]]] = []
        self._sleep_level: int | None = None
        core = loop.core
        # Verbs that return what remains to be done once the core is quiet.
        self._waiting_verbs: dict[str, Callable[..., Callable[[], object]]] = {
            "pause": self._pause,
            "sleep": self._sleep,
        }
        self._verbs: dict[str, Callable[..., Any]] = {
            "stats": core.stats,
            "abort_everywhere": self._abort_everywhere,
            "resume": self._resume,
            "wake_up": self._wake_up,
            "update_weights": self._update_weights,
            "load_adapter": core.load_adapter,
            "unload_adapter": core.unload_adapter,
            "adapters": core.workers.adapters.paths,
            "reset_prefix_cache": core.reset_prefix_cache,
            "start_profile": core.workers.start_profile,
            "stop_profile": core.workers.stop_profile,
        }

    def take(self, peer: int, call: Call) -> None:
        """Carry out a call, or begin to, and reply when it is done."""
        waiting = self._waiting_verbs.get(call.verb)
        if waiting is None:
            self._answer(peer, call.number, lambda: self._verbs[call.verb](**call.arguments))
            return
        try:
            finish = waiting(**call.arguments)
        except EngineDeadError:
            raise
        except Exception as error:
            self._loop.reply(peer, Reply(call.number, error=WireError.wrap(error)))
        else:
            self.waiting.append((peer, call.number, finish))

    def finish(self) -> None:
        """Answer what waited for quiet, now that the core has nothing to do."""
        calls, self.waiting = self.waiting, []
        for peer, number, finish in calls:
            self._answer(peer, number, finish)

    def lie_down(self, level: int) -> None:
        """Let the engine sleep, and say so to who may start another one."""
        self._core.sleep(level)
        self._rest(max(level, self._sleep_level or 0))

    def _answer(self, peer: int, number: int, work: Callable[[], object]) -> None:
        """Do what was asked for, and reply."""
        reply = Reply(number)
        try:
            reply.result = work()
        except EngineDeadError:
            raise
        except Exception as error:  # the caller's mistake; the engine goes on
            reply.error = WireError.wrap(error)
        self._loop.reply(peer, reply)

    def _abort_everywhere(self, request_ids: list[str] | None) -> None:
        """Let every front end abort requests: only they know which sequences these have."""
        self._loop.port.broadcast(Unwanted(request_ids))

    def _pause(self, mode: PauseMode, clear_cache: bool) -> Callable[[], object]:
        """Begin to pause; return what remains once the core is quiet."""
        self._loop.emit(self._loop.timed(lambda: self._core.pause(mode)))
        if mode == "abort":
            self._loop.abort_all()

        def finish() -> None:
            if clear_cache:
                self._core.reset_prefix_cache(reset_running=True)

        return finish

    def _sleep(self, level: int, mode: SleepMode) -> Callable[[], object]:
        """Begin to fall asleep; return what remains once the core is quiet."""
        core = self._core
        core.workers.check_sleep(level, mode)
        was_paused = core.is_paused
        if mode == "abort":
            self._loop.abort_all()
        elif mode == "wait" and not was_paused:
            core.pause("wait")

        def finish() -> None:
            self._loop.emit(self._loop.timed(core.quiesce))
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
        self._loop.port.broadcast(Resting(level))

    def _update_weights(self, path: str) -> None:
        self._loop.emit(self._loop.timed(self._core.quiesce))
        self._core.update_weights(path)

    def _resume(self) -> None:
        self._core.resume()
        calls, self.waiting = self.waiting, []
        error = WireError.wrap(EngineError("resume was called before the pause was complete"))
        for peer, number, _ in calls:
            self._loop.reply(peer, Reply(number, error=error))
