"""The scheduler of engines whose drafts may be trees.

A tree takes as many places behind the known tokens as it has nodes. Accepted nodes that lie where
a chain's tokens would lie stay there. From the first that does not on, they are computed again in
the next step, so that nobody moves keys and values: `num_computed_tokens` never covers a place that
holds another node's.
"""

from __future__ import annotations

from hotshoe.scheduler.config import SchedulerConfig
from hotshoe.scheduler.queue import WaitingQueue
from hotshoe.scheduler.request import Request
from hotshoe.scheduler.scheduler import Scheduler
from hotshoe.scheduler.step import ScheduledStep
from hotshoe.types.outputs import TokenOutput
from hotshoe.types.steps import StepPlan, StepResult
from hotshoe.types.trees import num_in_place, token_path


class TreeScheduler(Scheduler):
    """See `Scheduler`."""

    def __init__(self, config: SchedulerConfig, waiting: WaitingQueue | None = None) -> None:
        super().__init__(config, waiting)
        # Of the step that is being booked: nodes of each row with a tree, as parents and tokens.
        self._judged: dict[int, tuple[list[int], list[int]]] = {}
        # Accepted nodes that the next step of a request computes again.
        self._lost: dict[str, int] = {}

    def update(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """See `Scheduler.update`."""
        drafts = dict(zip(plan.draft_rows, plan.drafts, strict=True)) if plan.parents else {}
        self._judged = {row: (parents, drafts[row]) for row, parents in plan.parents.items()}
        return super().update(plan, result)

    def _continue(self, request: Request, step: ScheduledStep, budget: int) -> int:
        count = super()._continue(request, step, budget)
        row, plan = request.row, step.plan
        if request.parents and row is not None and plan.draft_rows[-1:] == [row]:
            plan.parents[row] = list(request.parents[: len(plan.drafts[-1])])
        return count

    def _book(
        self, request: Request, row: int, stop: int, step: ScheduledStep, num_drafts: int = 0
    ) -> int:
        accepted = request.num_accepted
        count = super()._book(request, row, stop, step, num_drafts)
        if accepted and request.parents:
            lost = self._lost.pop(request.request_id)
            step.plan.taken[row] = (lost, request.token_ids[-accepted - 1 :])
        return count

    def _release(self, request: Request) -> None:
        super()._release(request)
        self._lost.pop(request.request_id, None)

    def _accept(self, request: Request, row: int, accepted: list[int]) -> None:
        super()._accept(request, row, accepted)
        if request.row == row and row in self._judged:
            parents, drafts = self._judged[row]
            path = token_path(parents, drafts, accepted)
            lost = self._lost[request.request_id] = len(path) - num_in_place(path)
            request.num_computed_tokens -= lost
