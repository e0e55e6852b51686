"""A worker that is several processes, one rank each, none of them this one.

Every step's plan goes to all ranks; one result comes back. A rank that fails, dies or does not
answer ends all of them at once. When this process goes, however it does, they see it and end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hotshoe.config import EngineConfig
from hotshoe.engine.connection import Connection
from hotshoe.engine.joined import joined
from hotshoe.engine.messages import Side, WireError
from hotshoe.engine.rank_messages import (
    Allocate,
    ChangeWeights,
    Done,
    Failed,
    Join,
    Leave,
    Loaded,
    Obeyed,
    Profile,
    RankCommand,
    RankNews,
    Step,
    decode_news,
    encode,
)
from hotshoe.engine.spawn import LIMITS, ending, spawn
from hotshoe.errors import EngineDeadError, EngineError, lack_of
from hotshoe.executor import WorkerInfo
from hotshoe.slots import SLOTS, Slot
from hotshoe.types import StepPlan, StepResult

if TYPE_CHECKING:
    from hotshoe.loader.sources import Weights

COMMAND = (sys.executable, "-P", "-X", "faulthandler", "-m", "hotshoe.engine.rank")
#: How long all ranks together may take to end in good order.
LEAVE_S = 4.0
#: The first sign of a failure is often an effect; for so long the cause may still show.
GRACE_S = 0.3
DEAD_S = 1.0
LOOK_S = 0.25
#: Who is waited for is said after so long, then each time that it has doubled.
PATIENCE_S = 60.0

LOG = logging.getLogger(__name__)

News = TypeVar("News")


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One rank: its process, the channel to it, and its standard input.

    Nothing is written to that; the rank ends when it is closed.
    """

    rank: int
    process: subprocess.Popen[bytes]
    connection: Connection

    @classmethod
    def start(cls, rank: int, size: int, command: Sequence[str]) -> RankProcess:
        """Start a process that expects `Join`."""
        process, channel = spawn(command, [f"rank-{rank}-of-{size}"], stdin=subprocess.PIPE)
        return cls(rank, process, Connection(channel))

    def ending(self) -> str:
        """Say how the process has ended, or is about to."""
        try:
            code = self.process.wait(DEAD_S)
        except subprocess.TimeoutExpired:
            return "closed its channel"
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL; the machine may have run out of memory)"
        return f"was {ending(code)}" if code < 0 else f"ended with {code}"


def await_exits(ranks: Sequence[RankProcess], limit_s: float) -> None:
    """Give processes time to end by themselves."""
    deadline_s = time.monotonic() + limit_s
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.process.wait(max(deadline_s - time.monotonic(), 0))


def end_ranks(ranks: Sequence[RankProcess], directory: str) -> None:
    """End processes, by force where they run, and remove what belongs to them.

    That comes first: if this process is killed meanwhile, ranks that live remove the rest, and
    ranks that were ended could not. One that waits inside the kernel, for storage or a driver, ends
    when that comes back.
    """
    shutil.rmtree(directory, ignore_errors=True)
    for rank in ranks:
        if rank.process.poll() is None:
            os.killpg(rank.process.pid, signal.SIGKILL)  # with what it has started, as a compiler
    await_exits(ranks, LEAVE_S)
    for rank in ranks:
        assert rank.process.stdin is not None
        rank.process.stdin.close()
        rank.connection.close()
    shutil.rmtree(directory, ignore_errors=True)


class ParallelWorker:
    """See `hotshoe.executor.Worker`.

    Args:
        config: Resolved; it says how many ranks there are.
        eos_token_ids: Of model and tokenizer together.
        plugins: Name and version of those that this process has; every rank must have the same.
        command: What to start for each rank.
        slots: All that a rank may decide about.
    """

    def __init__(
        self,
        config: EngineConfig,
        eos_token_ids: tuple[int, ...],
        plugins: Sequence[tuple[str, str]],
        command: Sequence[str] = COMMAND,
        slots: Mapping[str, Slot] = SLOTS,
    ) -> None:
        self._slots = slots
        self._config = config
        self._eos_token_ids = eos_token_ids
        self._plugins = list(plugins)
        self._command = command
        self._size = config.num_ranks
        self._ranks: list[RankProcess] = []
        self._selector = selectors.DefaultSelector()
        self._news: deque[tuple[int, RankNews]] = deque()
        self._results: deque[StepResult] = deque()
        self._finalizer: weakref.finalize[Any, ParallelWorker] | None = None

    def load(self) -> WorkerInfo:
        """Start the ranks and let them build and load.

        Raises:
            EngineError: Not all of them can be started, or one has died.
            HotshoeError: What a rank failed with.
        """
        begin = time.perf_counter()
        directory = tempfile.mkdtemp(prefix="hotshoe-ranks-")
        # Ends them also when nobody calls `close`.
        self._finalizer = weakref.finalize(self, end_ranks, self._ranks, directory)
        with self._all_or_none():
            self._start(directory)
            infos = [news.unwrap(self._slots) for news in self._answers(Loaded)]
        return joined(infos, time.perf_counter() - begin, self._config)

    def _start(self, directory: str) -> None:
        """Start the ranks and tell them what to build."""
        try:
            for number in range(self._size):
                self._ranks.append(RankProcess.start(number, self._size, self._command))
        except OSError as error:
            raise lack_of(error) or EngineError(
                f"rank {number} of {self._size} cannot be started: {error}; {LIMITS}"
            ) from error
        join = Join(
            Side(), asdict(self._config), self._eos_token_ids, self._plugins, directory, rank=0
        )
        for rank in self._ranks:
            self._selector.register(rank.connection, selectors.EVENT_READ, rank.rank)
            join.rank = rank.rank
            rank.connection.send(encode(join))

    @contextlib.contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """End all ranks at once when their start fails or is interrupted."""
        try:
            yield
        except BaseException:
            self._stop()
            raise

    def allocate_cache(self, num_blocks: Sequence[int]) -> None:
        with self._all_or_none():
            self._broadcast(Allocate(list(num_blocks)))
            self._answers(Obeyed)

    def execute(self, plan: StepPlan) -> RunningRanks:
        self._broadcast(Step(plan))
        return RunningRanks(self)

    def finish_step(self) -> StepResult:
        """Wait for the result of the oldest step that nobody has waited for.

        Raises:
            EngineDeadError: A rank has died, or none has answered for too long.
            HotshoeError: What a rank failed with.
        """
        limit_s = self._config.engine_stall_timeout_s
        look_s, waited_s = min(LOOK_S, limit_s), 0.0  # counted, as while all are suspended none is
        while not self._results:
            waited_s += 0.0 if self._pump(look_s) else look_s
            if waited_s > limit_s:
                self._stop()
                raise EngineDeadError(
                    f"no step has come to an end within {limit_s:g} s on {self._size} ranks"
                )
        return self._results.popleft()

    def start_profile(self, folder: str) -> None:
        """Let every rank record; see `hotshoe.executor.ProfiledWorker`."""
        self._profile(folder)

    def stop_profile(self) -> str:
        return ", ".join(self._profile(None))

    def _profile(self, folder: str | None) -> list[str]:
        return self._obey(Profile(folder))

    def offload(self) -> None:
        """Let every rank do so; see `hotshoe.executor.WeightsWorker`."""
        self._obey(ChangeWeights("offload"), alike=True)

    def restore(self) -> None:
        self._obey(ChangeWeights("restore"), alike=True)

    def update_weights(self, weights: Weights, check_only: bool = False) -> None:
        from hotshoe.loader.shared import shared_weights  # needs torch, which ranks alone have

        with shared_weights(weights) as path:
            # Stages differ in the tensors that they refuse.
            if check_only or self._config.pipeline_parallel_size > 1:
                self._obey(ChangeWeights("check", path))
            if not check_only:
                self._obey(ChangeWeights("update", path), alike=True)

    def _obey(self, command: RankCommand, alike: bool = False) -> list[str]:
        """Let all ranks do something, and return the names that they answer.

        Args:
            command: Any that `Obeyed` answers.
            alike: Ranks that do it and ranks that refuse could not go on together.

        Raises:
            HotshoeError: A rank refuses; where ranks have to be alike, all of them do.
            EngineError: Ranks are no longer alike; all have been ended.
        """
        self._broadcast(command)
        answers = self._answers(Obeyed)
        errors = [answer.error.unwrap() for answer in answers if answer.error is not None]
        if alike and 0 < len(errors) < self._size:
            self._stop()
            raise EngineError(f"{len(errors)} of {self._size} ranks refused: {errors[0]}")
        if errors:
            raise errors[0]
        return [answer.name for answer in answers]

    def close(self) -> None:
        if self._ranks:
            self._broadcast(Leave())
            self._stop(LEAVE_S)

    def _broadcast(self, command: RankCommand) -> None:
        """Send to all; what a busy one does not take yet is sent while results are awaited."""
        if not self._ranks:
            raise EngineDeadError("the ranks have been stopped")
        message = encode(command)
        for rank in self._ranks:
            rank.connection.send(message)

    def _answers(self, kind: type[News]) -> list[News]:
        """Wait for one answer of every rank.

        Loading may take long, as storage may be slow: who is waited for is named meanwhile.

        Raises:
            EngineError: One has not answered in time; all have been ended.
        """
        found: dict[int, News] = {}
        limit_s = self._config.load_timeout_s
        begin_s, patience_s = time.monotonic(), min(PATIENCE_S, limit_s)
        while len(found) < self._size:
            if self._news:
                number, news = self._news.popleft()
                assert isinstance(news, kind)
                found[number] = news
            elif not self._pump(begin_s + patience_s - time.monotonic()):
                missing = [r for r in self._ranks if r.rank not in found]
                names = ", ".join(f"rank {r.rank} (process {r.process.pid})" for r in missing)
                if patience_s >= limit_s:
                    self._stop()
                    raise EngineError(
                        f"no answer of {names} of {self._size} within {limit_s:g} s; "
                        "where loading takes that long, raise --load-timeout-s"
                    )
                LOG.warning("waiting for %s of %d, %g s so far", names, self._size, patience_s)
                patience_s = min(2 * patience_s, limit_s)
        return [found[number] for number in range(self._size)]

    def _pump(self, timeout_s: float) -> bool:
        """Wait until something can be read or sent, and do it; False if nothing came.

        Raises:
            HotshoeError: A rank has failed; all have been ended.
        """
        for rank in self._ranks:
            writing = selectors.EVENT_WRITE if rank.connection.has_backlog else 0
            events = selectors.EVENT_READ | writing
            if self._selector.get_key(rank.connection).events != events:
                self._selector.modify(rank.connection, events, rank.rank)
        ready = self._selector.select(max(timeout_s, 0))
        failed = False
        for key, events in ready:
            connection = self._ranks[key.data].connection
            if events & selectors.EVENT_WRITE:
                connection.flush()
            self._hear(key.data)
            failed |= connection.ended
        if failed or any(isinstance(news, Failed) for _, news in self._news):
            self._diagnose()
        return bool(ready)

    def _hear(self, number: int) -> None:
        """Take in what a rank has said."""
        for message in self._ranks[number].connection.receive():
            news = decode_news(message)
            if isinstance(news, Done):
                self._results.append(news.result)
            else:
                self._news.append((number, news))

    def _diagnose(self) -> NoReturn:
        """End all ranks and raise what was the cause."""
        until_s = time.monotonic() + GRACE_S
        while (left_s := until_s - time.monotonic()) > 0 and not self._silent_deaths():
            for key, _ in self._selector.select(left_s):
                connection = self._ranks[key.data].connection
                self._hear(key.data)
                if connection.ended:
                    self._selector.unregister(connection)
        size, deaths = self._size, self._silent_deaths()
        if deaths:
            first = min(deaths, key=lambda rank: rank.rank)
            message = f"rank {first.rank} of {size} {first.ending()}"
            self._stop()
            raise EngineDeadError(message)
        number, error = next((n, news.error) for n, news in self._news if isinstance(news, Failed))
        self._stop()
        message = f"{error.message} (rank {number} of {size})"
        raise WireError(error.kind, message, error.details).unwrap()

    def _silent_deaths(self) -> list[RankProcess]:
        """Return the ranks that have gone without a word."""
        failed = {number for number, news in self._news if isinstance(news, Failed)}
        return [r for r in self._ranks if r.connection.ended and r.rank not in failed]

    def _stop(self, leave_s: float = 0.0) -> None:
        """End all ranks; those that have been told to leave get time to do so."""
        assert self._finalizer is not None
        if leave_s:
            await_exits(self._ranks, leave_s)
        self._ranks = []
        self._selector.close()
        self._finalizer()


@dataclass(frozen=True, slots=True)
class RunningRanks:
    """A step under way on all ranks. Results come in the order of steps."""

    worker: ParallelWorker

    def result(self) -> StepResult:
        """Wait for the step."""
        return self.worker.finish_step()
