"""A rank's process: builds its share of the model and computes what it is told to.

Started by `ParallelWorker` alone, which stays its owner: when the owner goes, so does the rank,
even in the middle of a step.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from hotshoe.config import EngineConfig
from hotshoe.engine.ranks.rank_messages import (
    Allocate,
    ChangeWeights,
    Done,
    Failed,
    Join,
    Loaded,
    Obeyed,
    Profile,
    RankNews,
    Step,
    decode_command,
    decode_join,
    encode,
)
from hotshoe.engine.start.setup import prepare
from hotshoe.engine.wire.children import channel_to_owner, when_orphaned
from hotshoe.engine.wire.connection import Connection
from hotshoe.engine.wire.messages import Side, WireError, check_side
from hotshoe.errors import ConfigError, HotshoeError, RequestError, UserError
from hotshoe.executor import AdapterWorker, ProfiledWorker, WeightsWorker, Worker
from hotshoe.host import uncollected
from hotshoe.plugins import PluginManager
from hotshoe.slots import Rendezvous
from hotshoe.types import StepHandle

#: Where a process shows its name to `ps` and `top`.
NAME_FILE = Path("/proc/self/comm")

#: Makes the worker of a rank, and says whether it returns from a step before that has ended.
Build = Callable[[Join], tuple[Worker, bool]]


class Rank:
    """What the process consists of.

    Args:
        connection: The channel to the owner.
        join: What the owner asked for.
        build: Makes the worker.
    """

    def __init__(self, connection: Connection, join: Join, build: Build) -> None:
        self._connection = connection
        self._join = join
        self._build = build
        self._reports = EngineConfig.from_mapping(join.config).mesh_at(join.seat.rank).reports
        self._handles: queue.SimpleQueue[StepHandle] = queue.SimpleQueue()

    def run(self) -> bool:
        """Serve; return whether the owner has told it to leave."""
        worker = None
        try:
            with uncollected():
                worker, asynchronous = self._build(self._join)
                self._say(Loaded.wrap(worker.load()))
            return self._serve(worker, self._start_waiting() if asynchronous else self._deliver)
        except Exception as error:
            self._fail(error)
            return False
        finally:
            if worker is not None:
                worker.close()

    def _serve(self, worker: Worker, deliver: Callable[[StepHandle], None]) -> bool:
        while (message := self._connection.fetch()) is not None:
            command = decode_command(message)
            if isinstance(command, Step):
                deliver(worker.execute(command.plan))
            elif isinstance(command, Allocate):
                worker.allocate_cache(command.num_blocks)
                self._say(Obeyed())
            elif isinstance(command, Profile):
                self._say(_profile(worker, command.folder))
            elif isinstance(command, ChangeWeights):
                self._say(_change_weights(worker, command))
            else:
                return True
        return False

    def _deliver(self, handle: StepHandle) -> None:
        """Wait for a step; ranks that share the last layers would all report the same of it."""
        result = handle.result()
        if self._reports:
            self._say(Done(result))

    def _start_waiting(self) -> Callable[[StepHandle], None]:
        """Wait for steps in a thread, so that the next one can be started meanwhile."""
        threading.Thread(target=self._deliver_all, name="hotshoe-results", daemon=True).start()
        return self._handles.put

    def _deliver_all(self) -> None:
        try:
            while True:
                self._deliver(self._handles.get())
        except Exception as error:
            self._fail(error)  # the owner, if there still is one, ends all ranks

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, HotshoeError):
            traceback.print_exc()
        self._say(Failed(WireError.wrap(error)))

    def _say(self, news: RankNews) -> None:
        self._connection.send(encode(news))
        self._connection.drain()


def _profile(worker: Worker, folder: str | None) -> Obeyed:
    """Start or stop recording; a refusal harms nobody."""
    try:
        if not isinstance(worker, ProfiledWorker):
            raise RequestError("this worker records no profiles")
        if folder is None:
            return Obeyed(worker.stop_profile())
        worker.start_profile(folder)
    except RequestError as error:
        return Obeyed(error=WireError.wrap(error))
    return Obeyed()


def _change_weights(worker: Worker, command: ChangeWeights) -> Obeyed:
    """Move or replace weights; a refusal harms nobody."""
    try:
        if not isinstance(worker, WeightsWorker) or not isinstance(worker, AdapterWorker):
            raise RequestError("this worker neither moves nor replaces weights")
        if command.action == "load_adapter":
            worker.load_adapter(command.name, command.path)
        elif command.action == "check_adapter":
            worker.load_adapter(command.name, command.path, check_only=True)
        elif command.action == "drop_adapter":
            worker.drop_adapter(command.name)
        elif command.action == "update":
            worker.update_weights(command.path)
        elif command.action == "check":
            worker.update_weights(command.path, check_only=True)
        elif command.action == "offload":
            worker.offload()
        else:
            worker.restore()
    except UserError as error:
        return Obeyed(error=WireError.wrap(error))
    return Obeyed()


def build_worker(join: Join) -> tuple[Worker, bool]:
    """Make core's worker for a rank.

    Raises:
        UserError: It cannot be built as asked.
    """
    check_side(Side(), join.side)
    config = EngineConfig.from_mapping(join.config)
    plugins = PluginManager(disabled=config.disable_plugins)
    check_plugins(join.plugins, plugins)
    seat = join.seat
    setup = prepare(config, plugins, part=seat.part)
    model_config = replace(setup.model_config, eos_token_ids=join.eos_token_ids)
    # One rank may load so much later than another. The owner notices a step that hangs.
    size, timeout_s = config.num_ranks, config.load_timeout_s
    rendezvous = Rendezvous(
        seat.directory, seat.rank, size, timeout_s, seat.address, hosts=seat.hosts
    )
    worker = setup.own_worker() if size == 1 else None
    worker = worker or replace(setup, model_config=model_config).torch_worker(rendezvous)
    return worker, setup.platform.asynchronous


def check_plugins(wanted: list[tuple[str, str]], plugins: PluginManager) -> None:
    """Refuse to build something else than the owner would.

    Raises:
        ConfigError: With the plugins that differ.
    """
    found = [(record.name, record.version) for record in plugins.records]
    differing = sorted({name for name, _ in set(map(tuple, wanted)) ^ set(found)})
    if differing:
        raise ConfigError(
            f"the processes of several ranks see installed plugins alone, and those differ "
            f"from the engine's: {', '.join(differing)}"
        )


def end(directory: str) -> NoReturn:
    """End at once, whatever is under way, and remove what belongs to the ranks."""
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)


def main(build: Build = build_worker) -> NoReturn:
    """Take the channel from the command line, and its first message from the channel."""
    connection = channel_to_owner()
    message = connection.fetch()
    if message is None:  # the owner went before it said anything
        os._exit(1)
    join = decode_join(message)
    with contextlib.suppress(OSError):  # other systems have no such file
        NAME_FILE.write_text(f"hotshoe-rank{join.seat.rank}")
    watch = when_orphaned(connection, partial(end, join.seat.directory))
    if not Rank(connection, join, build).run():
        watch.join()  # the owner lets go or has gone; then what belongs to the ranks is removed
    # The worker has been closed; taking the interpreter apart would only take time.
    os._exit(0)


if __name__ == "__main__":
    main()
