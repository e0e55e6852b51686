"""What front ends are told of an engine's steps, sleep and adapters."""

from pathlib import Path

import pytest

from hotshoe.builtin.null import NullWorker
from hotshoe.config import EngineConfig
from hotshoe.engine.client import STEP_SIZES, EngineStats
from hotshoe.engine.core.engine_core import EngineCore
from hotshoe.engine.core.rest import sleep_level
from hotshoe.engine.start.setup import prepare
from hotshoe.engine.wire.messages import Add
from hotshoe.scheduler import Request, Scheduler, SchedulerConfig
from hotshoe.types import FinishedStep, SamplingParams, StepPlan, StepResult
from hotshoe.types.experts import ExpertCounts


@pytest.fixture
def core(model_dir: Path, plugins) -> EngineCore:
    return EngineCore(prepare(EngineConfig(model=str(model_dir), platform="null"), plugins))


def run(core: EngineCore) -> EngineStats:
    while core.has_work():
        core.step()
    return core.stats()


def test_steps_are_counted_by_their_tokens(core: EngineCore) -> None:
    assert core.stats() == EngineStats(num_blocks=sum(core.workers.num_blocks))
    core.add(Add(["a"], [1] * 20, SamplingParams(max_tokens=3)))
    stats = run(core)
    # 20 tokens of the prompt, then one for each token but the last.
    sizes = {size: n for size, n in zip((*STEP_SIZES, None), stats.num_steps_of, strict=True) if n}
    assert sizes == {1: 2, 32: 1}
    assert (stats.num_steps, stats.num_step_tokens, stats.last_step_tokens) == (3, 22, 1)
    assert stats.last_step_s > 0 and stats.num_failed == 0


def test_prompt_tokens_that_were_cached(core: EngineCore) -> None:
    for request_id in "ab":
        core.add(Add([request_id], [1] * 40, SamplingParams(max_tokens=1)))
        stats = run(core)
    assert stats.num_prompt_tokens == 80
    assert 0 < stats.num_cached_tokens == stats.num_hit_tokens < 40


def test_rows_without_finite_logits(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handle:
        def result(self) -> StepResult:
            return StepResult(0, [], [], failed={0: "nothing is finite"})

    monkeypatch.setattr(NullWorker, "execute", lambda self, plan: Handle())
    core.add(Add(["a"], [1], SamplingParams()))
    stats = run(core)
    assert stats.num_failed == 1 and stats.num_finished["error"] == 1


def test_the_last_news_of_experts_stays(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    news = iter([None, ExpertCounts(1, 2, 1.5), None])

    def execute(worker: NullWorker, plan: StepPlan) -> FinishedStep:
        return FinishedStep(StepResult(plan.step_id, [0], [[1]], experts=next(news)))

    monkeypatch.setattr(NullWorker, "execute", execute)
    core.add(Add(["a"], [1], SamplingParams(max_tokens=3, ignore_eos=True)))
    known = [core.stats().experts for _ in range(3) if core.step() is not None]
    assert known == [ExpertCounts(), ExpertCounts(1, 2, 1.5), ExpertCounts(1, 2, 1.5)]


@pytest.mark.parametrize("level", [0, 2])
def test_the_level_of_sleep(core: EngineCore, level: int) -> None:
    core.sleep(level)
    stats = core.stats()
    assert stats.is_sleeping and stats.sleep_level == level
    core.wake_up()
    assert core.stats().sleep_level is None


def test_weights_that_woke_up_before_the_cache_are_in_use() -> None:
    worker = object()
    assert sleep_level({"weights", "kv_cache"}, worker) == 1
    assert sleep_level({"kv_cache"}, worker) == 0


def test_who_waits_for_something_else_than_room(core: EngineCore) -> None:
    core.pause("keep")
    core.add(Add(["a"], [1], SamplingParams()))
    stats = core.stats()
    assert (stats.num_waiting, stats.num_aside) == (1, 1)
    core.resume()
    stats = core.stats()
    assert (stats.num_waiting, stats.num_aside) == (1, 0)


def test_adapters_of_requests_that_wait_and_run() -> None:
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 64, "max_model_len": 64}
    limits["max_adapters"] = 2
    scheduler = Scheduler(SchedulerConfig(**limits, num_blocks=(16,), block_size=16))
    for number, adapter in enumerate(("x", "y", "x", None, "z")):
        params = SamplingParams(adapter=adapter)
        scheduler.add(Request(str(number), [1, 2], params))
    scheduler.schedule()
    assert scheduler.stats().adapters == {"x": (1, 1), "y": (0, 1), "z": (1, 0)}
