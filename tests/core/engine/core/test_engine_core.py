"""The engine core's own duties: a failing worker, memory limits, overlap."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from hotshoe.builtin.null import NullWorker
from hotshoe.config import EngineConfig
from hotshoe.engine.core.engine_core import EngineCore
from hotshoe.engine.start.cache_plan import plan_cache
from hotshoe.engine.start.setup import EngineSetup, prepare
from hotshoe.engine.wire.messages import Add
from hotshoe.errors import (
    CheckpointError,
    EngineDeadError,
    EngineError,
    MemoryLimitError,
    QueueFullError,
    RequestError,
)
from hotshoe.executor import WorkerInfo
from hotshoe.types import SamplingParams


def core(model_dir: Path, plugins, **options: object) -> EngineCore:
    config = EngineConfig(model=str(model_dir), platform="null", **options)
    return EngineCore(prepare(config, plugins))


def test_a_failing_worker_stops_the_engine_with_its_cause(
    model_dir: Path, plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = core(model_dir, plugins)
    engine.add(Add(["a"], [1], SamplingParams()))

    def fail(self: NullWorker, plan: object) -> None:
        raise RuntimeError("the device fell off")

    monkeypatch.setattr(NullWorker, "execute", fail)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="RuntimeError: the device fell off"):
            engine.step()
    with pytest.raises(EngineDeadError):
        engine.add(Add(["b"], [1], SamplingParams()))


def test_overlap_keeps_two_steps_in_flight(
    model_dir: Path, plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    original = NullWorker.execute

    def record(self: NullWorker, plan):
        started.append(plan.step_id)
        return original(self, plan)

    monkeypatch.setattr(NullWorker, "execute", record)
    engine = core(model_dir, plugins, async_scheduling=True)
    engine.add(Add(["a"], [1], SamplingParams(max_tokens=5)))
    assert [o.token_ids for o in engine.step()] == [[2]]
    assert len(started) == 2
    assert [o.token_ids for o in engine.step()] == [[3]]
    assert len(started) == 3


def test_a_draft_model_is_closed_where_the_engine_cannot_be_made(
    model_dir: Path, plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, closed = [NullWorker(1), None], []

    def close(self: NullWorker) -> None:
        closed.append(self)

    monkeypatch.setattr(NullWorker, "close", close)
    monkeypatch.setattr(EngineSetup, "create_worker", lambda self: made.pop(0) or 1 / 0)
    options = {"method": "draft_model", "model": str(model_dir)}
    with pytest.raises(ZeroDivisionError):
        core(model_dir, plugins, speculative_config=options)
    assert len(closed) == 1 and not made


def test_abort_frees_everything(model_dir: Path, plugins) -> None:
    engine = core(model_dir, plugins)
    engine.add(Add(["a"], [1] * 40, SamplingParams(max_tokens=20)))
    engine.step()
    engine.abort(["a", "never-seen"])
    assert not engine.has_work()
    assert engine.step() == []


CONFIG = EngineConfig(max_model_len=1000, block_size=16, max_num_seqs=2)


def test_cache_is_planned_within_the_budget() -> None:
    assert plan_cache(CONFIG, WorkerInfo(1, 100, 100 * 70)) == (70,)
    assert plan_cache(CONFIG, WorkerInfo(1, 100, 10**9)) == (2 * 63,)


def test_a_cache_too_small_for_one_request_is_refused_with_the_remedy() -> None:
    with pytest.raises(MemoryLimitError, match=r"lower --max-model-len to 992 or less"):
        plan_cache(CONFIG, WorkerInfo(1, 100, 100 * 62, "half of what is free"))
    with pytest.raises(MemoryLimitError, match=r"may take 0\.00 MiB .* free memory, or raise"):
        plan_cache(CONFIG, WorkerInfo(1, 100, 0, "half of what is free"))


@pytest.mark.parametrize(
    ("asked", "has"), [(1 << 40, "1,024 MiB in all"), (1 << 30, "700 MiB free")]
)
def test_a_cache_larger_than_the_device_is_refused(
    model_dir: Path, plugins, monkeypatch: pytest.MonkeyPatch, asked: int, has: str
) -> None:
    info = NullWorker(1).load()
    monkeypatch.setattr(NullWorker, "load", lambda worker: replace(info, free_bytes=700 << 20))
    with pytest.raises(MemoryLimitError, match=f"nothing has {has}; lower"):
        core(
            model_dir,
            plugins,
            kv_cache_memory_bytes=asked,
            max_num_seqs=1 << 15,
            max_num_batched_tokens=1 << 15,
            block_size=1,
        )


def test_a_worker_is_closed_when_the_engine_cannot_start(
    model_dir: Path, plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def close(self: NullWorker) -> None:
        closed.append(self)

    monkeypatch.setattr(NullWorker, "close", close)
    with pytest.raises(MemoryLimitError):
        core(model_dir, plugins, kv_cache_memory_bytes=1)
    assert len(closed) == 1


def test_the_first_sequence_alone_judges_the_prompt(model_dir: Path, plugins, monkeypatch) -> None:
    started = []
    execute = NullWorker.execute

    def record(self: NullWorker, plan):
        started.extend(plan.new_rows)
        return execute(self, plan)

    monkeypatch.setattr(NullWorker, "execute", record)
    engine = core(model_dir, plugins)
    params = SamplingParams(prompt_logprobs=1, max_tokens=1)
    engine.add(Add(["a", "b", "c"], [1] * 40, params))
    engine.step()
    assert [new.params.prompt_logprobs for new in started] == [1, None, None]
    assert [new.num_computed_tokens for new in started] == [0, 32, 32]


def add(
    engine: EngineCore, name: str, n: int = 1, length: int = 1, tenant: str | None = None
) -> None:
    ids = [f"{name}{i}" for i in range(n)]
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    engine.add(Add(ids, [1] * length, params, tenant=tenant))


def test_nothing_is_refused_while_nothing_waits(model_dir: Path, plugins) -> None:
    engine = core(model_dir, plugins, max_num_seqs=1, max_num_queued_reqs=1, max_queued_tokens=1)
    add(engine, "a", n=20, length=9)
    with pytest.raises(QueueFullError) as caught:
        add(engine, "b")
    assert 1 <= caught.value.retry_after_s <= 60


def test_free_rows_do_not_count_as_a_queue(model_dir: Path, plugins) -> None:
    engine = core(model_dir, plugins, max_num_seqs=4, max_num_queued_reqs=2)
    for number in range(6):
        add(engine, f"{number}-")
        assert engine.room() == 5 - number
    engine.step()
    assert engine.stats().num_running == 4 and engine.room() == 0
    engine.abort(["4-0"])
    assert engine.room() == 1


def test_room_is_what_the_tighter_limit_leaves(model_dir: Path, plugins) -> None:
    engine = core(model_dir, plugins, max_num_seqs=1, max_num_queued_reqs=9, max_queued_tokens=20)
    add(engine, "a")
    engine.step()
    add(engine, "b", n=2, length=6)
    assert (engine.room(), engine.room(8), engine.room(9)) == (7, 1, 0)
    with pytest.raises(QueueFullError):
        add(engine, "c", length=9)
    add(engine, "c", length=8)
    assert engine.room() == 0
    unbounded = {"max_num_queued_reqs": None, "max_queued_tokens": None}
    assert core(model_dir, plugins, **unbounded).room() == math.inf


@pytest.mark.parametrize(("policy", "most"), [("auto", 4), ("fair", 2)])
def test_a_tenant_leaves_room_to_others(model_dir: Path, plugins, policy: str, most: int) -> None:
    more = {"max_num_queued_reqs": 4, "scheduling_policy": policy}
    engine = core(model_dir, plugins, max_num_seqs=1, **more)
    add(engine, "first")
    engine.step()
    for number in range(most):
        add(engine, f"{number}-", tenant="a")
    with pytest.raises(QueueFullError, match=f"{most} requests with {most} tokens are waiting"):
        add(engine, "more", tenant="a")
    assert engine.room() == 4 - most
    if most < 4:
        add(engine, "other", tenant="b")


def test_while_paused_no_row_is_free(model_dir: Path, plugins) -> None:
    engine = core(model_dir, plugins, max_num_seqs=4, max_num_queued_reqs=2)
    assert engine.pause("wait") == []
    add(engine, "a")
    add(engine, "b")
    with pytest.raises(QueueFullError):
        add(engine, "c")
    assert not engine.has_work()
    engine.resume()
    add(engine, "c")
    assert engine.has_work()


@pytest.mark.parametrize("call", ["pause", "sleep"])
def test_freezing_brings_in_the_steps_under_way(model_dir: Path, plugins, call: str) -> None:
    engine = core(model_dir, plugins, async_scheduling=True)
    add(engine, "a")
    assert [o.token_ids for o in engine.step()] == [[2]]
    outputs = engine.pause("keep") if call == "pause" else engine.sleep(2)
    assert [o.token_ids for o in outputs] == [[3]]
    assert not engine.has_work() and engine.step() == []
    engine.resume() if call == "pause" else engine.wake_up()
    found = []
    while engine.has_work():
        found += [token for o in engine.step() for token in o.token_ids]
    assert found == [4, 5, 6, 7, 8, 9, 10]


def test_weights_are_not_replaced_while_a_step_is_under_way(model_dir: Path, plugins) -> None:
    engine = core(model_dir, plugins, async_scheduling=True)
    add(engine, "a")
    engine.step()
    with pytest.raises(RequestError, match="between steps; call quiesce first"):
        engine.update_weights([])
    assert [o.token_ids for o in engine.quiesce()] == [[3]]
    with pytest.raises(RequestError, match="cannot replace its weights"):  # it got that far
        engine.update_weights([])
    assert [o.token_ids for o in engine.step()] == [[4]]


@pytest.mark.parametrize("tags", [None, [], ["weights"], ["kv_cache"]])
def test_waking_an_engine_that_is_awake_changes_nothing(model_dir: Path, plugins, tags) -> None:
    engine = core(model_dir, plugins)
    add(engine, "a")
    assert [o.token_ids for o in engine.step()] == [[2]]
    engine.wake_up(tags)
    assert not engine.is_sleeping
    assert [o.token_ids for o in engine.step()] == [[3]]


@pytest.mark.parametrize("tags", ["weights", 3, [[]], ["x"]])
def test_tags_that_are_none_are_refused(model_dir: Path, plugins, tags) -> None:
    engine = core(model_dir, plugins)
    engine.sleep(2)
    with pytest.raises(RequestError, match=r"tags come as a list|unknown tag") as caught:
        engine.wake_up(tags)
    assert caught.value.field == "tags" and engine.is_sleeping


@pytest.mark.parametrize("level", [3, "1", None, []])
def test_a_sleep_level_that_is_none_is_refused(model_dir: Path, plugins, level) -> None:
    engine = core(model_dir, plugins)
    with pytest.raises(RequestError, match="is unknown; use one of 0, 1, 2"):
        engine.sleep(level)
    assert not engine.is_sleeping


def test_a_failed_wake_up_is_the_end(
    model_dir: Path, plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = core(model_dir, plugins)
    engine.sleep(2)

    def fail(self: NullWorker) -> None:
        raise RuntimeError("the checkpoint has gone")

    monkeypatch.setattr(NullWorker, "load", fail)
    with pytest.raises(EngineDeadError, match="the checkpoint has gone"):
        engine.wake_up()
    engine.close()


def test_an_engine_whose_files_have_gone_sleeps_on(
    model_dir: Path, plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = core(model_dir, plugins)
    add(engine, "a")
    engine.sleep(2)

    def fail(self: NullWorker) -> None:
        raise CheckpointError("/model is no directory")

    with monkeypatch.context() as patch:
        patch.setattr(NullWorker, "load", fail)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="is no directory; the engine sleeps on"):
                engine.wake_up()
    assert engine.is_sleeping
    engine.wake_up()
    assert [o.token_ids for o in engine.step()] == [[2]]


def test_a_failed_sleep_is_the_end(
    model_dir: Path, plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a rank has gone: what is left of the worker is of no use."""
    engine = core(model_dir, plugins)

    def fail(self: NullWorker) -> None:
        raise EngineError("1 of 2 ranks refused")

    with monkeypatch.context() as patch:
        patch.setattr(NullWorker, "close", fail)
        with pytest.raises(EngineDeadError, match="1 of 2 ranks refused"):
            engine.sleep(2)
    with pytest.raises(EngineDeadError):
        add(engine, "a")
    assert not engine.is_sleeping
    engine.close()
