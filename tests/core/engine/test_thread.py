"""The thread transport's own duties: its port, and closing when a step is stuck."""

import asyncio
import threading
import time

import pytest

from hotshoe import AsyncEngine, SamplingParams
from hotshoe.engine import thread
from hotshoe.engine.messages import Abort
from hotshoe.engine.thread import ThreadPort


def test_commands_come_in_order_and_together() -> None:
    port = ThreadPort(lambda news: None)
    assert port.receive(0.0) == port.receive(0.001) == []
    commands = [Abort([str(i)]) for i in range(5)]
    for command in commands:
        port.commands.put(command)
    assert port.receive(1.0) == [(0, command) for command in commands]


def test_wake_ends_the_wait() -> None:
    port = ThreadPort(lambda news: None)
    threading.Timer(0.05, port.wake).start()
    begin = time.monotonic()
    assert port.receive(10.0) == []
    assert time.monotonic() - begin < 5


def test_close_does_not_wait_for_ever_for_a_stuck_step(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "CLOSE_S", 0.2)
    engine: AsyncEngine = start("thread", {"hang_step": 0, "hang_s": 2.0})

    async def main() -> None:
        task = asyncio.create_task(anext(engine.generate("A", SamplingParams())))
        await asyncio.sleep(0.2)
        begin = time.monotonic()
        engine.close()
        assert time.monotonic() - begin < 1
        assert len(await asyncio.gather(task, return_exceptions=True)) == 1

    asyncio.run(main())
    for other in threading.enumerate():
        if other.name == "hotshoe-engine":
            other.join(5)
