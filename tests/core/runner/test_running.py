"""What is around a runner's steps: the balance of experts, checks, and blame."""

from types import SimpleNamespace

import pytest

from hotshoe.errors import EngineError
from hotshoe.foreign import foreign
from hotshoe.runner.running import RunningStep, Steps, too_early
from hotshoe.types import StepPlan
from hotshoe.types.experts import ExpertCounts

GUARD = foreign(lambda error: EngineError(f"blamed: {error}"))


def runner_of(execute) -> SimpleNamespace:
    return SimpleNamespace(execute=execute)


def started(plan: StepPlan) -> RunningStep:
    return RunningStep(plan.step_id, None, [], list)


def test_a_step_brings_news_of_experts_and_what_checks_say() -> None:
    counts = ExpertCounts(1, 2, 1.5)
    balance = SimpleNamespace(before_step=lambda: counts)
    checks = SimpleNamespace(remark=lambda: "the norm made NaN")
    step = Steps(runner_of(started), GUARD, balance, checks)(StepPlan(7))
    assert step.result().step_id == 7 and step.result().experts == counts
    assert step.remark == "the norm made NaN"


def test_a_step_alone_says_how_to_find_out_more() -> None:
    step = Steps(runner_of(started), GUARD, None, None)(StepPlan(7))
    assert step.result().experts is None
    assert "--check-candidates" in step.remark


def test_faults_are_blamed_at_the_start_and_at_the_end() -> None:
    def fails(*_: object) -> RunningStep:
        raise ValueError("no kernel")

    def fails_later(plan: StepPlan) -> RunningStep:
        return RunningStep(plan.step_id, None, [], fails)

    with pytest.raises(EngineError, match="blamed: no kernel"):
        Steps(runner_of(fails), GUARD, None, None)(StepPlan(0))
    step = Steps(runner_of(fails_later), GUARD, None, None)(StepPlan(0))
    with pytest.raises(EngineError, match="blamed: no kernel"):
        step.result()


def test_no_step_runs_before_there_is_a_cache() -> None:
    with pytest.raises(AssertionError, match="allocate_cache comes before"):
        too_early(StepPlan(0))
