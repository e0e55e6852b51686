"""Computes a worker's steps: what is around `Runner.execute` in each of them."""

from __future__ import annotations

from typing import NoReturn

from hotshoe.foreign import foreign
from hotshoe.runner.balance import ExpertBalance
from hotshoe.runner.checks import ResultChecks
from hotshoe.runner.runner import Runner
from hotshoe.runner.running import RunningStep
from hotshoe.types import StepPlan


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
        step.arrived = self._guard(step.arrived)
        return step


def too_early(plan: StepPlan) -> NoReturn:
    """Stand for steps while there is no cache."""
    raise AssertionError("allocate_cache comes before the first step")
