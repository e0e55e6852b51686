"""Starts an engine in a process of its own, watches it, and starts another one when it dies.

The two processes share a private channel. Over it the engine gets its configuration and reports
errors of its start-up as what they are; then signs of life. It also ties their lives: an engine
whose owner is gone sees the channel's end and ends itself.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from hotshoe.config import EngineConfig
from hotshoe.engine.core.boot import load_tokenizer
from hotshoe.engine.start.places import find_model, is_here
from hotshoe.engine.transport.link import Listener
from hotshoe.engine.transport.socket_link import SocketLink
from hotshoe.engine.wire.children import ENGINE, ENGINE_COMMAND, LIMITS, ChildProcess
from hotshoe.engine.wire.messages import (
    Dead,
    FromEngine,
    Heartbeat,
    Ready,
    Resting,
    Side,
    Start,
    decode_from_engine,
    encode,
)
from hotshoe.errors import EngineError, HotshoeError, lack_of
from hotshoe.foreign import ending
from hotshoe.plugins import PluginManager
from hotshoe.text.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)
TIMES = ENGINE
COMMAND = ENGINE_COMMAND


class EngineProcess:
    """An engine process and its successors; front ends reach all of them at `path`.

    `wait` must be called once; it returns when the engine serves.

    Args:
        config: Of every one of them; `engine_restarts` says how many there may be.
        path: Where they listen; default: in a folder of its own, removed by `close`.

    Raises:
        EngineError: The system lets no process start.

    Attributes:
        num_restarts: Attempts to start another engine.
        is_restarting: One has ended, and the next does not serve yet.
        is_over: No engine runs, and none will be started.
    """

    def __init__(self, config: EngineConfig, path: Path | None = None) -> None:
        self.num_restarts = 0
        self.is_restarting = False
        self.is_over = False
        self._config = config
        self._folder = Path(tempfile.mkdtemp(prefix="hotshoe-")) if path is None else None
        self.path = self._folder / "engine.sock" if self._folder else Path(path or "")
        self._closing = threading.Event()
        self._verdict: str | None = None
        self._sleep_level: int | None = None  # as the engine has said, after each change
        self._ended = threading.Condition()
        self._endings: list[str] = []
        self._num_told = 0
        self._watcher = threading.Thread(target=self._watch, name="hotshoe-watch", daemon=True)
        try:
            self._spawn()
        except OSError as error:
            self._remove_folder()
            raise lack_of(error) or EngineError(
                f"the engine process cannot be started: {error}; {LIMITS}"
            ) from error

    @property
    def pid(self) -> int:
        """Of the present engine process."""
        return self._child.pid

    def wait(self) -> None:
        """Wait until the engine serves; from then on it is watched.

        Raises:
            UserError: The engine cannot be built as asked; its own error.
            EngineError: It ended while it started.
        """
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        self._watcher.start()

    def cause(self) -> str:
        """Say how the last engine process ended, waiting a moment for it.

        Another one may run already: so this asks the watcher, once for every end.
        """
        with self._ended:
            self._ended.wait_for(lambda: len(self._endings) > self._num_told, TIMES.exit_s + 1.0)
            if len(self._endings) == self._num_told:
                return "it closed the connection"
            self._num_told = len(self._endings)
            return self._endings[-1]

    def close(self) -> None:
        """End the engine process, politely at first. May be called twice."""
        self._closing.set()
        self.is_over = True
        self._child.stop(TIMES)
        if self._watcher.ident is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        self._child.connection.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _spawn(self) -> None:
        folder = [] if self._folder is None else [str(self._folder)]
        if self._folder is not None and not self._folder.exists():  # temporary files were cleaned
            self._folder.mkdir(mode=0o700)
        self._child = ChildProcess(COMMAND, folder)
        self._verdict = None
        options, path = asdict(self._config), str(self.path)
        start = Start(Side(), options, path, self.num_restarts, self._sleep_level)
        self._child.connection.send(encode(start))
        if self._closing.is_set():  # `close` may have looked at the one before
            self._child.terminate()

    def _wait_ready(self) -> None:
        """Wait until the engine serves.

        Raises:
            UserError: The engine cannot be built as asked; its own error.
            EngineError: It ended while it started.
        """
        while True:
            self._child.connection.flush()
            said = self._hear()
            if isinstance(said, Ready):
                return
            if isinstance(said, Dead):
                raise said.error.unwrap()
            if self._child.connection.ended:
                raise EngineError(f"the engine process ended while it started: {self._reap()}")

    def _hear(self) -> FromEngine | None:
        message = self._child.connection.fetch(TIMES.look_s)
        return None if message is None else decode_from_engine(message)

    def _watch(self) -> None:
        while not self._closing.is_set():
            self._watch_one()
            if self._closing.is_set():
                return
            self.is_restarting = True
            cause = self._reap()
            self._report("the engine process has ended", cause)
            with self._ended:
                self._endings.append(cause)
                self._ended.notify_all()
            serves = self._restart()
            self.is_restarting = False
            if not serves:
                self.is_over = True
                self._remove_folder()
                return

    def _watch_one(self) -> None:
        """Return when the engine process has closed the channel; kill it when it is stuck."""
        limit_s = self._config.engine_stall_timeout_s
        silent_s = 0.0  # counted here, as the time while both processes are suspended is no silence
        while (said := self._hear()) or not self._child.connection.ended:
            silent_s = silent_s + TIMES.look_s if said is None else 0.0
            if isinstance(said, Resting):
                self._sleep_level = said.level
            elif isinstance(said, Heartbeat) and said.busy_s > limit_s:
                self._kill(f"stuck: a step has not come to an end within {limit_s:g} s")
            elif silent_s > limit_s:
                self._kill(f"stuck: no sign of life for {limit_s:g} s")

    def _kill(self, verdict: str) -> None:
        self._verdict = verdict
        self._child.abort(TIMES)

    def _reap(self) -> str:
        """Let a process that has closed its channel end, by force if need be; say how it ended."""
        if not self._child.wait(TIMES.exit_s):
            self._kill("stuck while it ended")
        return self._verdict or ending(self._child.code or 0)

    def _restart(self) -> bool:
        """Start engines until one serves or there were enough of them."""
        pause_s = 0.0
        while self.num_restarts < self._config.engine_restarts:
            if self._closing.wait(pause_s):
                return False
            pause_s = min(pause_s + TIMES.pause_s, TIMES.max_pause_s)
            self.num_restarts += 1
            self._child.connection.close()
            try:
                self._spawn()
                self._wait_ready()
            except (HotshoeError, OSError) as error:
                # One that still runs would take the channel's end for its owner's, and clean up.
                self._reap()
                self._report(f"another engine ({self._count()}) did not start", str(error))
            else:
                return True
        return False

    def _report(self, what: str, cause: str) -> None:
        """Log a failure, and what comes next, in one line; nothing when all is closed."""
        if self._closing.is_set():
            return
        if self.num_restarts < self._config.engine_restarts:
            then = f"starting another one ({self._count(1)})"
        else:
            then = f"no other one is started (--engine-restarts {self._config.engine_restarts})"
        LOG.error("%s: %s: %s; %s", self._config.model, what, " ".join(cause.split()), then)

    def _count(self, more: int = 0) -> str:
        return f"{self.num_restarts + more} of {self._config.engine_restarts}"


def start_process(config: EngineConfig, listener: Listener) -> SocketLink:
    """Start an engine process and connect to it; the link owns it.

    Raises:
        UserError: The engine cannot be built as asked.
        EngineError: It ended while it started.
    """
    process = EngineProcess(config)
    with ThreadPoolExecutor(1) as pool:
        tokenizer: Future[Tokenizer | None] | None = None
        names = config.model, config.tokenizer or config.model
        if is_here(*names):  # what is not, the engine process fetches
            tokenizer = pool.submit(_load_tokenizer, config)
        process.wait()
        try:
            return SocketLink(process.path, listener, process, tokenizer)
        except BaseException:
            process.close()
            raise


def _load_tokenizer(config: EngineConfig) -> Tokenizer | None:
    plugins = PluginManager(disabled=config.disable_plugins)
    return load_tokenizer(config, find_model(config, plugins).path, plugins)
