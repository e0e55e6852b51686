"""Streams from an engine thread: concurrency, departures, failures."""

import asyncio
import time
from pathlib import Path

import pytest

from hotshoe import AsyncEngine, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.builtin.null import NullWorker
from hotshoe.errors import EngineDeadError, RequestError


@pytest.fixture
def engine(model_dir: Path, plugins):
    engine = AsyncEngine(EngineConfig(model=str(model_dir), platform="null"), plugins)
    yield engine
    engine.close()


async def collect(engine: AsyncEngine, start: int, max_tokens: int = 5) -> list[int]:
    params = SamplingParams(max_tokens=max_tokens)
    found: list[int] = []
    async for update in engine.generate(TokensPrompt([start]), params):
        found += update.sequences[0].new_token_ids
    return found


def test_many_streams_at_once(engine: AsyncEngine) -> None:
    async def main() -> list[list[int]]:
        return await asyncio.gather(*(collect(engine, i) for i in range(50)))

    assert asyncio.run(main()) == [list(range(i + 1, i + 6)) for i in range(50)]


def test_a_departed_reader_aborts_its_request(engine: AsyncEngine) -> None:
    async def main() -> int:
        stream = engine.generate("A", SamplingParams(max_tokens=50))
        await anext(stream)
        await stream.aclose()
        assert await collect(engine, 3) == [4, 5, 6, 7, 8]
        stats = await engine.call(lambda e: e.core.stats())
        return stats.num_running + stats.num_waiting

    assert asyncio.run(main()) == 0


def test_a_bad_request_fails_alone(engine: AsyncEngine) -> None:
    async def main() -> tuple[object, object]:
        return tuple(
            await asyncio.gather(collect(engine, -5), collect(engine, 1), return_exceptions=True)
        )

    bad, good = asyncio.run(main())
    assert isinstance(bad, RequestError)
    assert good == [2, 3, 4, 5, 6]


def test_a_dead_engine_fails_everyone(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: NullWorker, plan: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(NullWorker, "execute", fail)

    async def main() -> list[object]:
        together = await asyncio.gather(
            *(collect(engine, i) for i in range(3)), return_exceptions=True
        )
        later = await asyncio.gather(collect(engine, 1), return_exceptions=True)
        return [*together, *later]

    for outcome in asyncio.run(main()):
        assert isinstance(outcome, EngineDeadError)
        assert "boom" in str(outcome)


def test_close_fails_what_is_running(
    model_dir: Path, plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = AsyncEngine(EngineConfig(model=str(model_dir), platform="null"), plugins)
    original = NullWorker.execute

    def slow(self: NullWorker, plan):
        time.sleep(0.05)
        return original(self, plan)

    monkeypatch.setattr(NullWorker, "execute", slow)

    async def main() -> None:
        stream = engine.generate("A", SamplingParams(max_tokens=50))
        await anext(stream)
        engine.close()
        with pytest.raises(EngineDeadError):
            [update async for update in stream]
        with pytest.raises(EngineDeadError, match="closed"):
            await collect(engine, 1)

    asyncio.run(main())


def test_call_runs_between_steps(engine: AsyncEngine) -> None:
    def fail(_: object) -> None:
        raise ValueError("mine")

    async def main() -> object:
        with pytest.raises(ValueError, match="mine"):
            await engine.call(fail)
        return await engine.call(lambda e: e.setup.platform.name)

    assert asyncio.run(main()) == "null"
