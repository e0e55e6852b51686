"""The messages between scheduler and worker."""

from hotshoe.types import FinishedStep, StepPlan, StepResult


def test_tokens_of_a_plan() -> None:
    assert StepPlan(0).num_tokens == 0
    assert StepPlan(1, rows=[0, 3], num_scheduled_tokens=[5, 1]).num_tokens == 6


def test_a_finished_step_gives_its_result() -> None:
    result = StepResult(7, [0], [[1]])
    assert FinishedStep(result).result() is result
