"""A worker's step from its start to its result, once what it brought has reached the host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from torch import Tensor

from hotshoe.foreign import foreign
from hotshoe.runner.ahead import MadeDrafts
from hotshoe.runner.pooling import PooledRows
from hotshoe.sampling import LogprobTensors, SampledBatch
from hotshoe.types import StepPlan, StepResult
from hotshoe.types.experts import ExpertCounts

if TYPE_CHECKING:
    from hotshoe.runner.balance import ExpertBalance
    from hotshoe.runner.checks import ResultChecks
    from hotshoe.runner.runner import Runner

_log = logging.getLogger(__name__)
UNGUARDED = nullcontext()
RUN_AGAIN = "run again with --check-candidates, which names the first operation that made such"


@dataclass(slots=True)
class RunningStep:
    """A step whose results are still on their way.

    Attributes:
        prompts: Log probabilities of prompt tokens, in order: row, tensors, and how many of the
            most likely tokens to report.
        arrived: Waits, and gives what `tensors` of sampled batch and prompts, then the vectors of
            `pooled` and the tokens of `made`, became on the host.
        pooled: Rows whose vectors the step completes, by task.
        drafts: Those that the step verifies, by row.
        made: Those that a head has made behind it, whose tensor comes last.
        experts: News of their balance, if there is any.
        recorded: As `StepResult.recorded`.
        remark: Said of rows that failed, as nothing of theirs is finite.
        guard: Makes an error while it waits name the plugin that failed.
    """

    step_id: int
    sampled: SampledBatch | None
    prompts: list[tuple[int, LogprobTensors, int]]
    arrived: Callable[[], Sequence[Tensor]]
    pooled: Sequence[PooledRows] = ()
    drafts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    made: MadeDrafts | None = None
    experts: ExpertCounts | None = None
    recorded: bool = False
    remark: str = RUN_AGAIN
    guard: AbstractContextManager[object] = UNGUARDED

    def result(self) -> StepResult:
        """Wait for the step."""
        with self.guard:
            tensors = list(self.arrived())
        result = StepResult(self.step_id, [], [])
        if self.sampled is not None:
            taken = len(self.sampled.tensors)
            result = self.sampled.step_result(self.step_id, tensors[:taken], self.drafts)
            del tensors[:taken]
        for row, device_form, width in self.prompts:
            taken = len(device_form.tensors)
            found = LogprobTensors(*tensors[:taken])
            entries = result.prompt_logprobs.setdefault(row, [])
            entries += found.to_host([width] * len(found.ranks))
            del tensors[:taken]
        for pooled in self.pooled:
            pooled.book(result, tensors.pop(0))
        if self.made is not None:
            self.made.book(result, tensors[0])
        result.experts, result.recorded = self.experts, self.recorded
        blamed = {} if self.sampled is None else self.sampled.blamed
        for row, why in result.failed.items():
            result.failed[row] = blamed.get(row, f"{why}; {self.remark}")
        for why in set(result.failed.values()):
            _log.warning("step %d: %s", self.step_id, why)
        return result


class Steps:
    """Runs steps, and says whose operation failed.

    Args:
        runner: Over an allocated cache.
        guard: Makes what fails an error that names who is to blame.
        balance: Moves experts between steps; None where they stay.
        checks: Look at every result; None where nobody does.
    """

    def __init__(
        self,
        runner: Runner,
        guard: foreign,
        balance: ExpertBalance | None,
        checks: ResultChecks | None,
    ) -> None:
        self.runner, self._guard = runner, guard
        self._balance, self._checks = balance, checks

    def __call__(self, plan: StepPlan) -> RunningStep:
        """Start a step; see `hotshoe.executor.Worker.execute`."""
        with self._guard:
            news = None if self._balance is None else self._balance.before_step()
            step = self.runner.execute(plan)
            step.experts = news
            if self._checks is not None:
                step.remark = self._checks.remark()
        step.guard = self._guard
        return step


def too_early(plan: StepPlan) -> NoReturn:
    """Stand for steps while there is no cache."""
    raise AssertionError("allocate_cache comes before the first step")
