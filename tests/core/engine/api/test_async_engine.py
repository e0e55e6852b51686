"""What `EngineClient` promises, of an engine in a thread and of one in a process."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotshoe import AsyncEngine, EngineConfig, SamplingParams, TextPrompt, TokensPrompt
from hotshoe.engine.client import EngineClient, EngineStats, EngineStatus
from hotshoe.engine.wire.messages import State
from hotshoe.errors import EngineDeadError, QueueFullError, RequestError
from hotshoe.types import FinishReason

TRANSPORTS = ["thread", "process"]
LONG = SamplingParams(max_tokens=50, ignore_eos=True)

Start = Callable[..., AsyncEngine]


@pytest.fixture(params=TRANSPORTS, scope="module")
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(transport: str, model_dir: Path, install_faulty) -> Iterator[EngineClient]:
    """One engine without faults for all tests that leave it as it was."""
    with pytest.MonkeyPatch.context() as patch:
        install_faulty(patch)
        config = EngineConfig(model=str(model_dir), platform="faulty")
        engine = AsyncEngine(config, transport=transport)
    yield engine
    engine.close()


async def collect(engine: EngineClient, start: int, max_tokens: int = 5, **options) -> list[int]:
    params = SamplingParams(max_tokens=max_tokens)
    found: list[int] = []
    async for update in engine.generate(TokensPrompt([start]), params, **options):
        found += update.sequences[0].new_token_ids
    return found


async def last(stream):
    async for update in stream:
        found = update
    return found


async def until(engine: EngineClient, **counts: int) -> EngineStats:
    """Wait until the statistics have these values."""
    while True:
        stats = await engine.stats()
        if all(getattr(stats, name) == count for name, count in counts.items()):
            return stats
        await asyncio.sleep(0.001)


async def until_free(engine: EngineClient) -> int:
    """Wait until nothing runs; return the number of steps that took."""
    before = (await engine.stats()).num_steps
    while True:
        stats = await engine.stats()
        if stats.num_running + stats.num_waiting == 0:
            assert stats.num_used_blocks == 0
            return stats.num_steps - before
        await asyncio.sleep(0.001)


def test_many_streams_at_once(engine: EngineClient) -> None:
    async def main() -> list[list[int]]:
        return await asyncio.gather(*(collect(engine, i) for i in range(50)))

    assert asyncio.run(main()) == [[i + 1, i + 2, i + 3, i + 4, i + 5] for i in range(50)]


def test_text_in_text_out(engine: EngineClient) -> None:
    async def main():
        params = SamplingParams(max_tokens=30, stop="EF", n=2)
        return (await last(engine.generate("A", params))).output()

    output = asyncio.run(main())
    assert [o.text for o in output.outputs] == ["BCD", "BCD"]
    assert output.finished and output.outputs[0].stop_reason == "EF"


def test_one_engine_serves_one_loop_after_the_other(engine: EngineClient) -> None:
    for _ in range(3):
        assert asyncio.run(collect(engine, 3, 2)) == [4, 5]


def test_the_engine_describes_itself(engine: EngineClient) -> None:
    info = engine.info
    assert engine.config.platform == info.facts.platform.replace("null", "faulty")
    assert (info.max_model_len, info.block_size) == (64, 16)
    assert info.num_blocks > 0 and info.vocab_size == 1 << 17
    assert info.eos_token_ids == (255,)
    assert any(change.field == "block_size" for change in info.changes)
    assert list(info.startup)[:2] == ["resolve configuration", "load tokenizer"]
    assert engine.tokenizer.encode("A") == [32]


def test_updates_carry_their_times(engine: EngineClient) -> None:
    async def main():
        begin = time.monotonic()
        update = await last(engine.generate("A", SamplingParams(max_tokens=3)))
        return begin, update.timing, update.output().timing, time.monotonic()

    begin, timing, copy, end = asyncio.run(main())
    assert copy == timing
    times = [timing.arrival_s, timing.scheduled_s, timing.first_token_s, timing.last_token_s]
    assert [begin, *times, end] == sorted([begin, *times, end])
    assert len(set(times)) == 4


def test_a_departed_reader_aborts_its_request(engine: EngineClient) -> None:
    async def main() -> int:
        stream = engine.generate("A", LONG)
        await anext(stream)
        await stream.aclose()
        assert await collect(engine, 3) == [4, 5, 6, 7, 8]
        return await until_free(engine)

    assert asyncio.run(main()) <= 2


def test_a_cancelled_task_aborts_its_request(start: Start, transport: str) -> None:
    engine = start(transport, {"step_s": 0.01})

    async def main() -> int:
        task = asyncio.create_task(collect(engine, 3, 50))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await until_free(engine)

    assert asyncio.run(main()) <= 2


@pytest.mark.parametrize("ids", ["mine", ["mine", "unknown"]], ids=str)
def test_abort_ends_a_request_for_its_reader(start: Start, transport: str, ids: Any) -> None:
    engine = start(transport, {"step_s": 0.05})

    async def main():
        stream = engine.generate("A", SamplingParams(max_tokens=60, n=2), request_id="mine")
        await anext(stream)
        await engine.abort(ids)
        update = await last(stream)
        await until_free(engine)
        return update

    update = asyncio.run(main())
    assert update.finished
    assert {s.finish_reason for s in update.sequences} == {FinishReason.ABORT}
    assert {s.error for s in update.sequences} == {None}


def test_an_id_in_use_is_refused(start: Start, transport: str) -> None:
    engine = start(transport, {"step_s": 0.05})

    async def main() -> list[int]:
        stream = engine.generate("A", LONG, request_id="mine")
        await anext(stream)
        with pytest.raises(RequestError, match="in use"):
            await collect(engine, 1, request_id="mine")
        await stream.aclose()
        return await collect(engine, 1, request_id="mine")

    assert len(asyncio.run(main())) == 5


def test_a_bad_request_fails_alone(engine: EngineClient) -> None:
    async def main() -> tuple[object, object]:
        return tuple(
            await asyncio.gather(collect(engine, -5), collect(engine, 1), return_exceptions=True)
        )

    bad, good = asyncio.run(main())
    assert isinstance(bad, RequestError)
    assert good == [2, 3, 4, 5, 6]


def test_what_only_the_core_can_refuse_comes_back_as_it_was(start: Start, transport: str) -> None:
    engine = start(transport, kv_cache_memory_bytes=2 * 1024, max_model_len=32)

    async def main() -> None:
        await collect(engine, 1, 5)
        with pytest.raises(RequestError, match="unpaired"):
            await last(engine.generate(TextPrompt("x", cache_salt="\ud800")))

    asyncio.run(main())


def test_the_deadline_ends_a_request(start: Start, transport: str) -> None:
    engine = start(transport, {"step_s": 0.5})

    async def main(timeout_s: float) -> int:
        begin = time.monotonic()
        update = await last(engine.generate("A", LONG, timeout_s=timeout_s))
        assert time.monotonic() - begin > timeout_s - 0.1
        await until_free(engine)
        [sequence] = update.sequences
        assert sequence.finish_reason is FinishReason.ABORT and sequence.error == "deadline"
        return len(update.output().outputs[0].token_ids)

    # A machine that is busy may have computed nothing yet.
    counts = (asyncio.run(main(timeout_s)) for timeout_s in (1.5, 5.0, 15.0))
    assert 0 < next(filter(None, counts)) < 50


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_deadlines_are_positive_numbers(engine: EngineClient, timeout_s: object) -> None:
    with pytest.raises(RequestError, match="timeout_s"):
        asyncio.run(collect(engine, 1, timeout_s=timeout_s))
    assert asyncio.run(collect(engine, 1, 1)) == [2]


def test_a_full_queue_refuses_early_and_recovers(start: Start, transport: str) -> None:
    engine = start(transport, {"step_s": 0.02}, max_num_seqs=2, max_num_queued_reqs=3)

    async def main():
        await engine.pause("keep")
        tasks = [asyncio.create_task(collect(engine, i, 10)) for i in range(20)]
        while sum(task.done() for task in tasks) < 17:
            await asyncio.sleep(0.01)
        await until(engine, num_waiting=3)
        await engine.resume()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert await collect(engine, 1, 1) == [2]
        engine.check_queue()
        return outcomes

    outcomes = asyncio.run(main())
    served = [o for o in outcomes if isinstance(o, list)]
    refused = [o for o in outcomes if isinstance(o, QueueFullError)]
    assert len(served) == 3 and all(len(o) == 10 for o in served)
    assert len(refused) == 17 and all(1 <= o.retry_after_s <= 60 for o in refused)


def test_who_has_no_room_never_reaches_the_engine(start: Start, transport: str) -> None:
    engine = start(transport, {"step_s": 0.02}, max_num_seqs=1, max_num_queued_reqs=3)

    async def main() -> list[object]:
        running = asyncio.create_task(collect(engine, 1, 50))
        await until(engine, num_running=1)
        with pytest.raises(RequestError):  # gives its place back
            await collect(engine, 10**9)
        tasks = [asyncio.create_task(collect(engine, i, 1)) for i in range(40)]
        found = await asyncio.gather(running, *tasks, return_exceptions=True)
        assert await collect(engine, 1, 1) == [2]
        assert engine._num_coming == 0
        return found

    found = asyncio.run(main())
    assert sum(isinstance(outcome, list) for outcome in found) == 4
    said = {str(outcome) for outcome in found if not isinstance(outcome, list)}
    assert said == {"too many requests are waiting already"}


def test_room_that_was_told_before_an_addition_came_is_not_given_twice(
    start: Start, transport: str
) -> None:
    engine = start(transport, max_num_seqs=1, max_num_queued_reqs=3)

    async def main() -> list[int]:
        await engine.pause("keep")
        held = asyncio.create_task(collect(engine, 1, 3))
        await until(engine, num_waiting=1)
        number = engine._state.last_add
        engine.on_news(State(room=1, last_add=number - 1))  # on its way when the addition left
        with pytest.raises(QueueFullError):
            engine.check_queue()
        engine.on_news(State(room=1, last_add=number))
        engine.check_queue()
        await engine.resume()
        return await held

    assert asyncio.run(main()) == [2, 3, 4]
    assert engine._uncounted == {}


def test_waiting_tokens_are_bounded(start: Start, transport: str) -> None:
    engine = start(transport, {"step_s": 0.05}, max_num_seqs=1, max_queued_tokens=50)

    async def main() -> list[object]:
        prompt = TokensPrompt([1] * 20)
        streams = [engine.generate(prompt, SamplingParams(max_tokens=8)) for _ in range(8)]
        return await asyncio.gather(*map(last, streams), return_exceptions=True)

    outcomes = asyncio.run(main())
    assert any(isinstance(o, QueueFullError) for o in outcomes)
    assert sum(not isinstance(o, Exception) for o in outcomes) >= 2


def test_priorities_decide_who_waits(start: Start, transport: str) -> None:
    engine = start(transport, {"step_s": 0.01}, max_num_seqs=1, scheduling_policy="priority")
    done: list[int] = []

    async def ask(priority: int) -> None:
        await collect(engine, 1, 3, priority=priority)
        done.append(priority)

    async def main() -> None:
        await engine.pause("keep")
        tasks = [asyncio.create_task(ask(priority)) for priority in (3, 1, 2)]
        await until(engine, num_waiting=3)
        await engine.resume()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert done == [1, 2, 3]


def test_tenants_share_no_prefix(engine: EngineClient) -> None:
    prompt = TokensPrompt(list(range(40)))

    async def cached(tenant: str | None) -> int:
        update = await last(engine.generate(prompt, SamplingParams(max_tokens=1), tenant=tenant))
        return update.output().num_cached_tokens

    async def main() -> list[int]:
        return [await cached(tenant) for tenant in ("a", "a", "b", None, "b", None)]

    assert asyncio.run(main()) == [0, 32, 0, 0, 32, 32]


def test_a_dead_engine_fails_everyone(start: Start, transport: str) -> None:
    engine = start(transport, {"fail_step": 9, "step_s": 0.01})

    async def main() -> list[object]:
        running = [asyncio.create_task(collect(engine, i, 50)) for i in range(3)]
        await asyncio.sleep(0.05)
        together = await asyncio.gather(*running, engine.pause("wait"), return_exceptions=True)
        with pytest.raises(EngineDeadError):
            engine.check_queue()
        later = (collect(engine, 1), engine.stats(), engine.check_health())
        return [*together, *await asyncio.gather(*later, return_exceptions=True)]

    for outcome in asyncio.run(main()):
        assert isinstance(outcome, EngineDeadError)
        assert "the device fell off" in str(outcome)


def test_a_stuck_engine_fails_everyone_in_time(start: Start, transport: str, hurry: Path) -> None:
    faults = {"hang_step": 2, "hang_s": 60.0, "hurry": str(hurry)}
    engine = start(transport, faults, engine_stall_timeout_s=1.0)

    async def main() -> float:
        await engine.check_health()
        begin = time.monotonic()
        with pytest.raises(EngineDeadError):
            await collect(engine, 1)
        seconds = time.monotonic() - begin
        with pytest.raises(EngineDeadError):
            await engine.check_health()
        return seconds

    assert 0.9 < asyncio.run(main()) < 30.0
    hurry.touch()


def test_long_steps_that_end_are_no_stall(start: Start, transport: str) -> None:
    engine = start(transport, {"step_s": 0.5}, engine_stall_timeout_s=2.0)

    async def main() -> list[int]:
        found = await collect(engine, 1, 5)  # 2.5 s in all
        await engine.check_health()
        return found

    assert asyncio.run(main()) == [2, 3, 4, 5, 6]


def test_close_fails_what_is_running(start: Start, transport: str) -> None:
    engine = start(transport, {"step_s": 0.5})

    async def main() -> None:
        stream = engine.generate("A", LONG)
        await anext(stream)
        engine.close()
        with pytest.raises(EngineDeadError):
            [update async for update in stream]
        with pytest.raises(EngineDeadError, match="closed"):
            await collect(engine, 1)

    asyncio.run(main())
    engine.close()


# Pausing, sleeping, resetting.


def test_pause_abort_ends_all_and_queues_what_comes(
    start: Start, transport: str, hurry: Path
) -> None:
    engine = start(transport, {"step_s": 0.5, "hurry": str(hurry)})

    async def main():
        running = asyncio.create_task(last(engine.generate("A", LONG)))
        await until(engine, num_running=1)
        await engine.pause("abort")
        assert engine.is_paused
        ended = await running
        hurry.touch()
        later = asyncio.create_task(collect(engine, 1, 3))
        stats = await until(engine, num_waiting=1)
        assert stats.num_running == 0 and stats.is_paused
        await engine.check_health()
        await engine.resume()
        assert not engine.is_paused
        return ended, await later

    ended, later = asyncio.run(main())
    assert ended.finished and ended.sequences[0].finish_reason is FinishReason.ABORT
    assert later == [2, 3, 4]


def test_pause_wait_lets_running_ones_finish(start: Start, transport: str) -> None:
    engine = start(transport, {"step_s": 0.005}, max_num_seqs=1)

    async def main():
        await engine.pause("keep")
        running = [asyncio.create_task(collect(engine, i, 20)) for i in range(2)]
        await until(engine, num_waiting=2)
        await engine.resume()
        pausing = asyncio.create_task(engine.pause("wait"))
        held = asyncio.create_task(collect(engine, 9, 1))  # after it, as tasks begin in order
        await pausing
        await until(engine, num_running=0, num_waiting=1)
        assert [len(found) for found in await asyncio.gather(*running)] == [20, 20]
        assert not held.done()
        await engine.resume()
        return await held

    assert asyncio.run(main()) == [10]


@pytest.mark.parametrize("clear_cache", [False, True])
def test_pause_keep_freezes_and_goes_on(
    start: Start, transport: str, clear_cache: bool, hurry: Path
) -> None:
    engine = start(transport, {"step_s": 0.5, "hurry": str(hurry)})

    async def main():
        stream = engine.generate(TokensPrompt([1] * 20), LONG)
        await anext(stream)
        await engine.pause("keep", clear_cache=clear_cache)
        hurry.touch()
        before = await engine.stats()
        await asyncio.sleep(0.1)
        after = await engine.stats()
        assert before.num_steps == after.num_steps > 0
        assert after.num_used_blocks == 0 if clear_cache else after.num_used_blocks > 0
        assert after.num_running + after.num_waiting == 1
        await engine.resume()
        return (await last(stream)).output().outputs[0]

    output = asyncio.run(main())
    assert output.token_ids == list(range(2, 46)) and output.finish_reason is FinishReason.LENGTH


def test_resume_before_the_pause_is_complete(start: Start, transport: str, hurry: Path) -> None:
    engine = start(transport, {"step_s": 0.5, "hurry": str(hurry)})

    async def main():
        running = asyncio.create_task(collect(engine, 1, 30))
        await until(engine, num_running=1)
        pausing = asyncio.create_task(engine.pause("wait"))
        await asyncio.sleep(0)  # it begins
        await engine.resume()
        with pytest.raises(Exception, match="before the pause was complete"):
            await pausing
        hurry.touch()
        return await running

    assert len(asyncio.run(main())) == 30


def test_unknown_modes_levels_and_tags_are_named(engine: EngineClient) -> None:
    async def main() -> list[str | None]:
        fields = []
        for call in (engine.pause("stop"), engine.sleep(1), engine.sleep(7), engine.wake_up(["x"])):
            with pytest.raises(RequestError) as caught:
                await call
            fields.append(caught.value.field)
        assert not engine.is_paused and not engine.is_sleeping
        return fields

    assert asyncio.run(main()) == ["mode", "level", "level", "tags"]


@pytest.mark.parametrize("level", [0, 2])
def test_sleep_freezes_until_woken(start: Start, transport: str, level: int) -> None:
    engine = start(transport, {"step_s": 0.005})

    async def main():
        running = asyncio.create_task(collect(engine, 1, 30))
        await asyncio.sleep(0.05)
        await engine.sleep(level)
        assert engine.is_sleeping
        waiting = asyncio.create_task(collect(engine, 7, 1))
        before = await engine.stats()
        await asyncio.sleep(0.05)
        after = await engine.stats()
        assert before.num_steps == after.num_steps and after.is_sleeping
        await engine.check_health()
        if level == 2:
            with pytest.raises(RequestError, match="weights before"):
                await engine.wake_up(["kv_cache"])
            await engine.wake_up(["weights"])
            assert engine.is_sleeping
        await engine.wake_up()
        assert not engine.is_sleeping
        return await asyncio.gather(running, waiting)

    running, waiting = asyncio.run(main())
    assert running == list(range(2, 32)) and waiting == [8]


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_sleep_with_requests_under_way(start: Start, transport: str, mode: str) -> None:
    engine = start(transport, {"step_s": 0.005})

    async def main():
        running = asyncio.create_task(last(engine.generate(TokensPrompt([1]), LONG)))
        await until(engine, num_running=1)
        await engine.sleep(2, mode)
        assert engine.is_sleeping and not engine.is_paused
        result = (await running).output().outputs[0]  # ended before the engine slept
        await engine.wake_up()
        return result, await collect(engine, 7, 1)

    result, after = asyncio.run(main())
    wanted = FinishReason.ABORT if mode == "abort" else FinishReason.LENGTH
    assert result.finish_reason is wanted
    assert (len(result.token_ids) == 50) == (mode == "wait")
    assert result.token_ids == list(range(2, 2 + len(result.token_ids))) and after == [8]


def test_reset_of_the_prefix_cache(start: Start, transport: str, hurry: Path) -> None:
    engine = start(transport, {"step_s": 0.5, "hurry": str(hurry)})

    async def main():
        running = asyncio.create_task(last(engine.generate(TokensPrompt([1] * 30), LONG)))
        await until(engine, num_running=1)
        assert not await engine.reset_prefix_cache()
        assert await engine.reset_prefix_cache(reset_running=True)
        assert (await engine.stats()).num_preemptions == 1
        hurry.touch()
        await running
        assert await engine.reset_prefix_cache()
        again = await last(engine.generate(TokensPrompt([1] * 30), SamplingParams(max_tokens=1)))
        return again.output().num_cached_tokens

    assert asyncio.run(main()) == 0


def test_statistics_count_everything(start: Start, transport: str) -> None:
    engine = start(transport)

    async def main():
        prompt = TokensPrompt(list(range(40)))
        for _ in range(2):
            await last(engine.generate(prompt, SamplingParams(max_tokens=3)))
        return await engine.stats()

    stats = asyncio.run(main())
    assert stats.num_prompt_tokens == 80 and stats.num_generated_tokens == 6
    assert (stats.num_queried_tokens, stats.num_hit_tokens) == (80, 32)
    assert stats.num_finished == {"length": 2}
    assert stats.num_steps >= 6 and stats.last_step_s > 0 and stats.last_step_tokens == 1
    assert stats.kv_cache_usage == 0


@pytest.mark.parametrize("owner", [AsyncEngine, EngineStatus])
def test_every_property_says_what_it_is(owner: type) -> None:
    found = {n: p for n, p in vars(owner).items() if isinstance(p, property) and n[0] != "_"}
    assert {"config", "is_paused", "is_over"} <= found.keys()
    assert all(member.__doc__ for member in found.values())
