"""Several processes that answer HTTP on one socket, for one engine process.

The supervisor owns the listening socket, the engine and the API processes; it answers nothing
itself. Each API process is told what it is over a private channel, whose end tells it that the
supervisor is gone. One that dies is started anew.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from hotshoe.config import EngineConfig
from hotshoe.engine.process import EngineProcess
from hotshoe.errors import HotshoeError
from hotshoe_server.config import ServerConfig

POLL_S = 0.1
RESTART_S = 1.0
#: Beyond the shutdown timeout: how long a process may take to end.
EXIT_S = 10.0


class Mission(msgspec.Struct):
    """What an API process is told at first. Then comes READY, once the engine serves.

    `shared_file` is as in `hotshoe_server.state.ServerState`, `process` counts from 0.
    """

    engine: dict[str, Any]
    server: dict[str, Any]
    options: dict[str, dict[str, Any]]
    engine_socket: str
    listener: int
    shared_file: int
    process: int


READY = b"ready\n"


@dataclass(slots=True)
class Worker:
    """An API process and the channel to it."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    started_s: float


class Supervisor:
    """Starts and watches everything.

    Args:
        engine: The engine's configuration.
        server: The server's.
        options: Those of extensions, by name.
        say: Prints a line for people.
    """

    def __init__(
        self,
        engine: EngineConfig,
        server: ServerConfig,
        options: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._engine_config = engine
        self._config = server
        self._options = {name: asdict(value) for name, value in options.items()}
        self._say = say
        self._stop = threading.Event()
        self._workers: list[Worker] = []
        self._ready = False
        # It has no name, so nothing is left behind, however this process ends.
        self._shared_file = tempfile.TemporaryFile()  # noqa: SIM115

    def run(self, listener: socket.socket) -> int:
        """Serve until a signal; return the exit code.

        Raises:
            UserError: The engine cannot be built as asked.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        engine = EngineProcess(self._engine_config)
        failure: list[BaseException] = []
        booting = threading.Thread(target=_wait_for, args=(engine, failure), daemon=True)
        booting.start()
        try:
            self._workers = [
                self._spawn(engine, listener, index) for index in range(self._config.api_processes)
            ]
            self._watch(engine, listener, booting, failure)
        finally:
            self._end()
            engine.close()
        return 0

    def _watch(
        self,
        engine: EngineProcess,
        listener: socket.socket,
        booting: threading.Thread,
        failure: list[BaseException],
    ) -> None:
        while not self._stop.wait(POLL_S):
            if failure:
                raise failure[0]
            if not self._ready and not booting.is_alive():
                self._ready = True
                for worker in self._workers:
                    _tell_ready(worker)
            for index, worker in enumerate(self._workers):
                old_enough = time.monotonic() - worker.started_s > RESTART_S
                if worker.process.poll() is not None and old_enough:
                    self._say(f"API process {index} has ended; starting another one")
                    worker.channel.close()
                    self._workers[index] = self._spawn(engine, listener, index)
                    if self._ready:
                        _tell_ready(self._workers[index])

    def _spawn(self, engine: EngineProcess, listener: socket.socket, index: int) -> Worker:
        ours, theirs = socket.socketpair()
        shared = self._shared_file.fileno()
        fds = [theirs.fileno(), listener.fileno(), shared]
        module = "hotshoe_server.api_process"
        command = [sys.executable, "-P", "-m", module, str(theirs.fileno())]
        with theirs:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=fds, start_new_session=True
            )
        config = self._config if index == 0 else replace(self._config, admin_socket=None)
        mission = Mission(
            asdict(self._engine_config),
            asdict(replace(config, response_store_bytes=0)),
            self._options,
            str(engine.path),
            listener.fileno(),
            shared,
            index,
        )
        with contextlib.suppress(OSError):  # it has died already; the watch will see that
            ours.sendall(msgspec.json.encode(mission) + b"\n")
        return Worker(process, ours, time.monotonic())

    def _end(self) -> None:
        """Let the API processes drain, and kill those that do not end."""
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.terminate()
        limit = time.monotonic() + self._config.shutdown_timeout_s + EXIT_S
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.channel.close()


def _wait_for(engine: EngineProcess, failure: list[BaseException]) -> None:
    try:
        engine.wait()
    except HotshoeError as error:
        failure.append(error)


def _tell_ready(worker: Worker) -> None:
    with contextlib.suppress(OSError):
        worker.channel.sendall(READY)
