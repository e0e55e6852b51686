"""Several processes that answer HTTP on one socket, for one engine process.

The supervisor owns the listening sockets, the engine, the API processes and the store of responses;
it answers no HTTP itself. Each API process is told what it is over a private channel, whose end
tells it that the supervisor is gone. One that dies is started anew, and one that does not come to
serve, or whose loop gives no more signs of life, is killed; when none serves, and one ends again
and again before it could, the server gives up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import msgspec

from hotshoe.config import EngineConfig
from hotshoe.engine.transport.process import EngineProcess
from hotshoe.engine.wire.children import LIMITS, ChildProcess, Times
from hotshoe.errors import EngineError, lack_of
from hotshoe.foreign import ending
from hotshoe_server.config import ServerConfig
from hotshoe_server.signals import signals_call
from hotshoe_server.socket_file import Listening
from hotshoe_server.store import ResponseStore
from hotshoe_server.store_link import serve_store

COMMAND = (sys.executable, "-P", "-m", "hotshoe_server.api_process")
_log = logging.getLogger(__name__)
#: Of an API process. `leave_s` comes after the shutdown timeout. A process that merely has much to
#: do is never silent for `silent_s`; only the supervisor's own looks count, and there are none
#: while it, or the machine, is suspended. No option: who halts a process to debug it takes a server
#: of one. `start_s` begins when a process may load. It needs seconds, but an extension's code may
#: wait for something, and the log names whose it is.
TIMES = Times(
    start_s=300.0,
    beat_s=5.0,
    silent_s=60.0,
    look_s=0.1,
    leave_s=10.0,
    pause_s=1.0,
    max_pause_s=30.0,
)
#: How many in a row may end before they serve, while no other does.
TRIES = 3
#: Exit code of an API process that would fail again: it has said what the user's mistake is. While
#: another one serves, it is tried again nevertheless: what has changed since then may change back.
HOPELESS = 2


class Mission(msgspec.Struct):
    """What an API process is told at first. Then comes READY, once it may load.

    The first process may when the engine serves, and says SERVING when it does; the others then, so
    that one process alone, the first, ever says that the model is being loaded. Each goes on saying
    SERVING, every `TIMES.beat_s`, as a sign of life. `listener`, `admin`, `store` and `shared_file`
    are descriptors; `store` leads to `serve_store`, and `shared_file` is as in
    `hotshoe_server.state.ServerState`. `process` counts from 0; only the first has the admin
    socket.
    """

    engine: dict[str, Any]
    server: dict[str, Any]
    options: dict[str, dict[str, Any]]
    engine_socket: str
    listener: int
    admin: int | None
    store: int
    shared_file: int
    process: int
    answers_early: bool


READY = b"ready"
SERVING = b"serving"


@dataclass(slots=True)
class Worker:
    """An API process, and the task that answers it about stored responses.

    Attributes:
        num_failed: How many in its place ended before they served, since one did.
        may_load: It has been told so.
        has_served: As far as was heard; see `serves`.
        silent_s: How long it has said nothing since, by what `is_stuck` has counted.
    """

    child: ChildProcess
    storing: asyncio.Task[None]
    started_s: float
    num_failed: int
    may_load: bool = False
    has_served: bool = False
    silent_s: float = 0.0

    def let_load(self) -> None:
        """Tell it that it may; from now on it has to do something."""
        self.may_load = True
        self.child.connection.send(READY)

    def serves(self) -> bool:
        """Return whether it has said so, even if it has ended since."""
        self.child.connection.flush()
        if self.child.connection.receive():
            self.has_served, self.silent_s = True, 0.0
        return self.has_served

    def is_stuck(self) -> bool:
        """Return whether it has had something to say for too long; asked at each look."""
        limit_s = TIMES.silent_s if self.serves() else TIMES.start_s
        if self.may_load:
            self.silent_s += TIMES.look_s
        return self.silent_s > limit_s

    def is_due(self) -> bool:
        """Return whether one that has ended may be replaced by now."""
        pause_s = min(TIMES.pause_s * (1 + self.num_failed), TIMES.max_pause_s)
        return time.monotonic() - self.started_s > pause_s

    def release(self) -> None:
        """Let go of what led to a process that has ended."""
        self.child.connection.close()
        self.storing.cancel()


class Supervisor:
    """Starts and watches everything.

    Args:
        engine: The engine's configuration.
        server: The server's.
        options: Those of extensions, by name.
    """

    def __init__(
        self, engine: EngineConfig, server: ServerConfig, options: Mapping[str, Any]
    ) -> None:
        self._engine_config = engine
        self._config = server
        self._options = {name: asdict(value) for name, value in options.items()}
        self._stop = asyncio.Event()
        self._store = ResponseStore(server.response_store_bytes)
        self._workers: list[Worker] = []
        self._engine_serves = False
        self._first_serves = False
        self._code = 0
        # It has no name, so nothing is left behind, however this process ends.
        self._shared_file = tempfile.TemporaryFile()  # noqa: SIM115

    def run(self, front: Listening, admin: Listening | None) -> int:
        """Serve two sockets until a signal; return the exit code.

        Raises:
            UserError: The engine cannot be built as asked.
            EngineError: A process cannot be started.
        """
        asyncio.run(self._run(front, admin))
        return self._code

    async def _run(self, front: Listening, admin: Listening | None) -> None:
        with signals_call(self._on_signal):
            engine = EngineProcess(self._engine_config)
            booting = asyncio.create_task(asyncio.to_thread(engine.wait))
            spawn_one = partial(self._spawn, str(engine.path), front, admin)
            try:
                self._start(spawn_one)
                await self._watch(engine, booting, spawn_one)
            finally:
                await self._end()
                engine.close()
                await asyncio.gather(booting, return_exceptions=True)

    def _start(self, spawn_one: Callable[[int, int], Worker]) -> None:
        try:
            for index in range(self._config.api_processes):
                self._workers.append(spawn_one(index, 0))
        except OSError as error:
            raise lack_of(error) or EngineError(
                f"API process {index} cannot be started: {error}; {LIMITS}"
            ) from error

    def _on_signal(self) -> None:
        if self._stop.is_set():  # what ends already is told not to wait
            self._terminate()
        self._stop.set()

    async def _watch(
        self,
        engine: EngineProcess,
        booting: asyncio.Task[None],
        spawn_one: Callable[[int, int], Worker],
    ) -> None:
        """Wait for a signal, and for what befalls the processes meanwhile."""
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), TIMES.look_s)
            if booting.done() and not self._engine_serves:
                booting.result()
                self._engine_serves = True
                self._workers[0].let_load()
            if not self._first_serves and self._workers[0].serves():
                self._first_serves = True
                for worker in self._workers[1:]:
                    worker.let_load()
            for index, worker in enumerate(self._workers):
                if self._stop.is_set():
                    return
                if worker.child.code is None:
                    if worker.is_stuck():
                        self._kill(index, worker)
                elif self._gives_up(index, worker):
                    self._stop.set()
                elif worker.is_due() and not engine.is_restarting:  # which it could not reach
                    self._replace(index, worker, spawn_one)

    def _kill(self, index: int, worker: Worker) -> None:
        """End one that cannot end by itself; `_watch` will see that it has ended."""
        if worker.has_served:
            _log.warning(
                "API process %d has been stuck for %g s; killing it", index, TIMES.silent_s
            )
        else:
            said = "API process %d has not come to serve within %g s; killing it"
            _log.warning(said, index, TIMES.start_s)
        worker.child.kill()
        worker.silent_s = 0.0

    def _gives_up(self, index: int, worker: Worker) -> bool:
        """Return whether to end with `_code`, as this one has ended and none serves."""
        if any(one.serves() for one in self._workers):
            return False
        code = worker.child.code or 0
        if code == HOPELESS:
            self._code = HOPELESS
        elif worker.num_failed + 1 >= TRIES:
            _log.error(
                "API process %d has ended %d times before it could serve, the last time with %s; "
                "giving up: what it wrote above says why",
                *(index, TRIES, ending(code)),
            )
            self._code = 1
        return bool(self._code)

    def _replace(self, index: int, worker: Worker, spawn_one: Callable[[int, int], Worker]) -> None:
        how = ending(worker.child.code or 0)
        _log.warning("API process %d has ended (%s); starting another one", index, how)
        failed = 0 if worker.serves() else worker.num_failed + 1
        worker.release()
        try:
            self._workers[index] = spawn_one(index, failed)
        except OSError as error:  # later there may be memory and descriptors again
            _log.error("API process %d cannot be started: %s", index, error)
            worker.num_failed, worker.has_served = failed, False
            worker.started_s = time.monotonic()

    def _spawn(
        self,
        engine_socket: str,
        front: Listening,
        admin: Listening | None,
        index: int,
        num_failed: int,
    ) -> Worker:
        """Start an API process and tell it all that it needs."""
        ours, theirs = socket.socketpair()
        shared = self._shared_file.fileno()
        door = [] if index or not admin else admin.descriptors
        with theirs:
            child = ChildProcess(COMMAND, fds=[theirs.fileno(), shared, *front.descriptors, *door])
            mission = Mission(
                engine=asdict(self._engine_config),
                server=asdict(self._config),
                options=self._options,
                engine_socket=engine_socket,
                listener=front.listener.fileno(),
                admin=door[0] if door else None,
                store=theirs.fileno(),
                shared_file=shared,
                process=index,
                answers_early=index == 0 and not self._engine_serves,
            )
        storing = asyncio.create_task(serve_store(self._store, ours))
        worker = Worker(child, storing, time.monotonic(), num_failed)
        child.connection.send(msgspec.json.encode(mission))
        if self._first_serves if index else self._engine_serves:
            worker.let_load()
        return worker

    async def _end(self) -> None:
        """Let the API processes drain, and kill those that do not end."""
        self._terminate()
        limit = time.monotonic() + self._config.shutdown_timeout_s + TIMES.leave_s
        while any(worker.child.code is None for worker in self._workers):
            if time.monotonic() > limit:
                for worker in self._workers:
                    worker.child.kill()
            await asyncio.sleep(TIMES.look_s)
        for worker in self._workers:
            worker.release()

    def _terminate(self) -> None:
        for worker in self._workers:
            worker.child.terminate()
