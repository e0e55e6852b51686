"""The books of drafts: how many were verified, and how many were accepted, by their place.

Kept by the scheduler, which knows both sides of a step. Standard library only.
"""

from dataclasses import dataclass

from hotshoe.types.steps import StepPlan, StepResult


@dataclass(slots=True)
class DraftCounts:
    """Totals since the start.

    Attributes:
        num_drafts: Rows of steps that verified drafts.
        num_draft_tokens: Drafts of these.
        num_accepted_at: Accepted drafts by their place, first to last.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_at: tuple[int, ...] = ()

    @property
    def num_accepted_tokens(self) -> int:
        """Accepted drafts."""
        return sum(self.num_accepted_at)

    def add(self, plan: StepPlan, result: StepResult) -> None:
        """Count a step."""
        brought = dict(zip(result.rows, result.tokens, strict=True))
        accepted = list(self.num_accepted_at)
        for row, drafts in zip(plan.draft_rows, plan.drafts, strict=True):
            self.num_drafts += 1
            self.num_draft_tokens += len(drafts)
            accepted += [0] * (len(drafts) - len(accepted))
            for place in range(len(brought.get(row, ())) - 1):
                accepted[place] += 1
        self.num_accepted_at = tuple(accepted)
