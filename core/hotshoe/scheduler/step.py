"""A planned step as `Scheduler` remembers it until its result comes. Used there alone."""

from dataclasses import dataclass, field

from hotshoe.scheduler.request import Request
from hotshoe.types.outputs import TokenOutput
from hotshoe.types.steps import StepPlan, StepResult


@dataclass(slots=True)
class ScheduledStep:
    """A planned step, and what `update` must know of it beside the plan.

    Attributes:
        plan: What the worker gets.
        requests: Request by row, as of this step.
        prompt_starts: By row that computes prompt tokens whose log probabilities are wanted: the
            position of the first of these tokens.
        spare: What drafts may still take of the budget; every running request keeps one token.
        max_rows: Most requests that the step computes.
    """

    plan: StepPlan
    spare: int
    max_rows: int
    requests: list[Request | None] = field(default_factory=list)
    prompt_starts: dict[int, int] = field(default_factory=dict)

    def attach_logprobs(self, result: StepResult, outputs: list[TokenOutput]) -> None:
        """Put log probabilities into the outputs; a prompt's only when they are complete."""
        output_of = {output.request_id: output for output in outputs}
        for row, logprobs in result.logprobs.items():
            request = self.requests[row]
            output = None if request is None else output_of.get(request.request_id)
            if output is not None:
                output.logprobs = logprobs[: len(output.token_ids)]
        for row, first in self.prompt_starts.items():
            request = self.requests[row]
            assert request is not None
            request.add_prompt_logprobs(first, result.prompt_logprobs.get(row, []))
            output = output_of.get(request.request_id)
            if output is not None and output.error is None:
                output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
