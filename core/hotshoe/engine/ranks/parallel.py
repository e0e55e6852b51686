"""A worker that is several ranks, none of them this process.

Every step's plan goes to all ranks; one result comes back. A rank that fails, dies or does not
answer ends all of them at once. A `RankGroup` knows where they are.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from hotshoe.config import ResolvedConfig
from hotshoe.engine.ranks.joined import joined
from hotshoe.engine.ranks.rank_messages import (
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
from hotshoe.engine.wire.children import RANKS
from hotshoe.engine.wire.messages import Side, WireError
from hotshoe.errors import CheckpointError, EngineDeadError, EngineError, HotshoeError
from hotshoe.executor import RankGroup, Seat, WorkerInfo
from hotshoe.slots import SLOTS, Slot
from hotshoe.types import StepPlan, StepResult

if TYPE_CHECKING:
    from hotshoe.loader.sources import Weights

#: The first sign of a failure is often an effect; for so long the cause may still show.
GRACE_S = 0.3
#: Who is waited for is said after so long, then each time that it has doubled.
PATIENCE_S = 60.0

LOG = logging.getLogger(__name__)

News = TypeVar("News")


class ParallelWorker:
    """See `hotshoe.executor.Worker`.

    Args:
        config: Resolved; it says how many ranks there are.
        eos_token_ids: Of model and tokenizer together.
        plugins: Name and version of those that this process has; every rank must have the same.
        group: Where the ranks are.
        slots: All that a rank may decide about.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        eos_token_ids: tuple[int, ...],
        plugins: Sequence[tuple[str, str]],
        group: RankGroup,
        slots: Mapping[str, Slot] = SLOTS,
    ) -> None:
        self._slots = slots
        self._config = config
        self._eos_token_ids = eos_token_ids
        self._plugins = list(plugins)
        self._group = group
        self._size = group.size
        self._runs = False
        self._gone: list[int] = []
        self._news: deque[tuple[int, RankNews]] = deque()
        self._results: deque[StepResult] = deque()

    def load(self) -> WorkerInfo:
        """Start the ranks and let them build and load.

        Raises:
            EngineError: Not all of them can be started, or one has died.
            HotshoeError: What a rank failed with.
        """
        begin = time.perf_counter()
        with self._all_or_none():
            self._runs = True
            self._group.start(self._first_message)
            infos = [news.unwrap(self._slots) for news in self._answers(Loaded)]
        return joined(infos, time.perf_counter() - begin, self._config)

    def _first_message(self, seat: Seat) -> bytes:
        """See `hotshoe.executor.group.FirstMessage`."""
        settings = (asdict(self._config), self._eos_token_ids, self._plugins)
        return encode(Join(Side(), *settings, seat))

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
        look_s = min(RANKS.look_s, limit_s)
        waited_s = 0.0  # counted, as while all are suspended none is
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

    def load_adapter(self, name: str, path: str, check_only: bool = False) -> None:
        """See `hotshoe.executor.AdapterWorker.load_adapter`.

        All ranks look before one keeps it: hosts may have other files, and stages other matrices.

        Raises:
            CheckpointError: With the first refusal; nothing has changed.
        """
        refusals = _refusals(self._ask(ChangeWeights("check_adapter", path, name)))
        if 0 < len(refusals) < self._size:
            rank, error = min(refusals.items())
            raise CheckpointError(f"rank {rank} of {self._size} refused adapter {name!r}: {error}")
        if refusals:
            raise refusals[0]
        if not check_only:
            self._obey(ChangeWeights("load_adapter", path, name), alike=True)

    def drop_adapter(self, name: str) -> None:
        self._obey(ChangeWeights("drop_adapter", name=name), alike=True)

    def _obey(self, command: RankCommand, alike: bool = False) -> list[str]:
        """Let all ranks do something, and return the names that they answer.

        Args:
            command: Any that `Obeyed` answers.
            alike: Ranks that do it and ranks that refuse could not go on together.

        Raises:
            HotshoeError: A rank refuses; where ranks have to be alike, all of them do.
            EngineError: Ranks are no longer alike; all have been ended.
        """
        answers = self._ask(command)
        errors = list(_refusals(answers).values())
        if alike and 0 < len(errors) < self._size:
            self._stop()
            raise EngineError(f"{len(errors)} of {self._size} ranks refused: {errors[0]}")
        if errors:
            raise errors[0]
        return [answer.name for answer in answers]

    def _ask(self, command: RankCommand) -> list[Obeyed]:
        """Let all ranks do something, and return their answers."""
        self._broadcast(command)
        return self._answers(Obeyed)

    def close(self) -> None:
        if self._runs:
            self._broadcast(Leave())
            self._stop(RANKS.leave_s)

    def _broadcast(self, command: RankCommand) -> None:
        """Send to all; what a busy one does not take yet is sent while results are awaited."""
        if not self._runs:
            raise EngineDeadError("the ranks have been stopped")
        message = encode(command)
        for rank in range(self._size):
            self._group.send(rank, message)

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
                missing = [rank for rank in range(self._size) if rank not in found]
                names = ", ".join(f"rank {rank} ({self._group.name(rank)})" for rank in missing)
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
        """Wait until something comes, and take it in; False if nothing came.

        Raises:
            HotshoeError: A rank has failed; all have been ended.
        """
        came = self._hear(timeout_s)
        if self._gone or any(isinstance(news, Failed) for _, news in self._news):
            self._diagnose()
        return came

    def _hear(self, timeout_s: float) -> bool:
        """Take in what ranks have said."""
        found = self._group.receive(timeout_s)
        for number, message in found:
            if message is None:
                self._gone.append(number)
                continue
            news = decode_news(message)
            if isinstance(news, Done):
                self._results.append(news.result)
            else:
                self._news.append((number, news))
        return bool(found)

    def _diagnose(self) -> NoReturn:
        """End all ranks and raise what was the cause."""
        until_s = time.monotonic() + GRACE_S
        while (left_s := until_s - time.monotonic()) > 0 and not self._silent_deaths():
            self._hear(left_s)
        size, deaths = self._size, self._silent_deaths()
        if deaths:
            message = f"rank {min(deaths)} of {size} {self._group.ending(min(deaths))}"
            self._stop()
            raise EngineDeadError(message)
        number, error = next((n, news.error) for n, news in self._news if isinstance(news, Failed))
        self._stop()
        message = f"{error.message} (rank {number} of {size})"
        raise WireError(error.kind, message, error.details).unwrap()

    def _silent_deaths(self) -> list[int]:
        """Return the ranks that have gone without a word."""
        failed = {number for number, news in self._news if isinstance(news, Failed)}
        return [number for number in self._gone if number not in failed]

    def _stop(self, leave_s: float = 0.0) -> None:
        """End all ranks; those that have been told to leave get time to do so."""
        self._runs = False
        self._group.stop(leave_s)


@dataclass(frozen=True, slots=True)
class RunningRanks:
    """A step under way on all ranks. Results come in the order of steps."""

    worker: ParallelWorker

    def result(self) -> StepResult:
        """Wait for the step."""
        return self.worker.finish_step()


def _refusals(answers: Sequence[Obeyed]) -> dict[int, HotshoeError]:
    """Return the errors of ranks that refused."""
    return {
        rank: answer.error.unwrap()
        for rank, answer in enumerate(answers)
        if answer.error is not None
    }
