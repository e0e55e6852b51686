"""The thread transport's own duties: its port, and closing when a step is stuck."""

import asyncio
import threading
import time
from typing import NoReturn

import pytest

from hotshoe import AsyncEngine, SamplingParams
from hotshoe.builtin.null import NullWorker
from hotshoe.engine.transport import thread
from hotshoe.engine.transport.thread import ThreadPort
from hotshoe.engine.wire.messages import Abort
from hotshoe.types import StepPlan


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
    assert port.receive(60.0) == []
    assert time.monotonic() - begin < 30


def test_close_does_not_wait_for_ever_for_a_stuck_step(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "CLOSE_S", 0.2)
    stuck, released = threading.Event(), threading.Event()

    def execute(self: NullWorker, plan: StepPlan) -> NoReturn:
        stuck.set()
        released.wait(60)
        raise RuntimeError("the device came back too late")

    monkeypatch.setattr(NullWorker, "execute", execute)
    engine: AsyncEngine = start("thread")

    async def main() -> None:
        task = asyncio.create_task(anext(engine.generate("A", SamplingParams())))
        await asyncio.to_thread(stuck.wait)
        begin = time.monotonic()
        engine.close()
        assert time.monotonic() - begin < 30
        released.set()
        assert len(await asyncio.gather(task, return_exceptions=True)) == 1

    asyncio.run(main())
    for other in threading.enumerate():
        if other.name == "hotshoe-engine":
            other.join(60)
