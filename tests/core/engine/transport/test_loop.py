"""The loop, driven by hand: scoping of requests, one message a step, and what everybody is told."""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotshoe.builtin.null import NullWorker
from hotshoe.config import EngineConfig
from hotshoe.engine.core.boot import boot
from hotshoe.engine.transport.loop import EngineLoop, StepClock
from hotshoe.engine.wire.messages import (
    Abort,
    Add,
    Batch,
    Call,
    Command,
    Dead,
    Heartbeat,
    Hello,
    News,
    Refused,
    Reply,
    Resting,
    Side,
    State,
    Welcome,
)
from hotshoe.errors import EngineDeadError
from hotshoe.types import SamplingParams

LONG = SamplingParams(max_tokens=30, ignore_eos=True)


class ListPort:
    """Commands from a queue, news into a list: (front end, news), None meaning everybody."""

    def __init__(self) -> None:
        self.commands: queue.SimpleQueue[list[tuple[int, Command | None]]] = queue.SimpleQueue()
        self.news: list[tuple[int | None, News]] = []

    def receive(self, timeout_s: float) -> list[tuple[int, Command | None]]:
        try:
            return self.commands.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return []

    def send(self, peer: int, news: News) -> None:
        self.news.append((peer, news))

    def broadcast(self, news: News) -> None:
        self.news.append((None, news))

    def wake(self) -> None:
        self.commands.put([])

    def of(self, kind: type, peer: int | None) -> list[News]:
        return [news for who, news in list(self.news) if isinstance(news, kind) and who == peer]


Run = Callable[..., ListPort]


@pytest.fixture
def run(model_dir: Path, plugins) -> Iterator[Run]:
    """Start loops: `run(**options)`; they are stopped in the end."""
    started: list[tuple[EngineLoop, threading.Thread]] = []

    def start(**options: object) -> ListPort:
        unbounded = {"max_num_queued_reqs": None, "max_queued_tokens": None}
        config = EngineConfig(model=str(model_dir), platform="null", **(unbounded | options))
        booted = boot(config, plugins)
        port = ListPort()
        loop = EngineLoop(booted.core, booted.info, port)

        def target() -> None:
            try:
                loop.run()
            except EngineDeadError as error:
                port.news.append((None, error))

        thread = threading.Thread(target=target)
        thread.start()
        started.append((loop, thread))
        return port

    yield start
    for loop, thread in started:
        loop.stop()
        thread.join(60)
        assert not thread.is_alive()


def add(*ids: str, start: int = 1, params: SamplingParams = LONG) -> Add:
    return Add(list(ids), [start], params)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def tokens(port: ListPort, peer: int, request_id: str) -> list[int]:
    outputs = (o for batch in port.of(Batch, peer) for o in batch.outputs)
    return [t for o in outputs if o.request_id == request_id for t in o.token_ids]


def test_front_ends_do_not_meet(run: Run) -> None:
    port = run()
    port.commands.put([(1, add("a", start=10)), (2, add("a", start=50)), (2, add("b", "c"))])
    until(lambda: len(tokens(port, 1, "a")) == 30 and len(tokens(port, 2, "c")) == 30)
    assert tokens(port, 1, "a") == list(range(11, 41))
    assert tokens(port, 2, "a") == list(range(51, 81))
    assert tokens(port, 1, "b") == []


def test_one_message_for_each_step_and_front_end(run: Run) -> None:
    port = run()
    port.commands.put([(1, add(*"abcdefgh")), (2, add("x"))])
    until(lambda: len(tokens(port, 2, "x")) == 30)
    for peer, width in ((1, 8), (2, 1)):
        batches = port.of(Batch, peer)
        assert len(batches) == 30
        assert {len(batch.outputs) for batch in batches} == {width}
        times = [batch.time_s for batch in batches]
        assert times == sorted(times)


def test_who_goes_takes_only_its_own_requests_along(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry = threading.Event()
    slow(monkeypatch, 0.5, hurry)
    port = run()
    port.commands.put([(1, add("a")), (2, add("a"))])
    until(lambda: tokens(port, 1, "a"))
    port.commands.put([(1, None), (2, Abort(["unknown"]))])
    hurry.set()
    until(lambda: len(tokens(port, 2, "a")) == 30)
    assert len(tokens(port, 1, "a")) < 30


def slow(
    monkeypatch: pytest.MonkeyPatch, seconds: float, hurry: threading.Event | None = None
) -> None:
    """Let steps take that long, until they are to hurry."""
    plain, hurry = NullWorker.execute, hurry or threading.Event()

    def execute(self: NullWorker, plan):
        hurry.wait(seconds)
        return plain(self, plan)

    monkeypatch.setattr(NullWorker, "execute", execute)


def test_welcome_describes_and_another_version_is_refused(run: Run) -> None:
    port = run()
    port.commands.put([(1, Hello(Side())), (2, Hello(Side("0", 99)))])
    until(lambda: port.of(Dead, 2))
    [welcome] = port.of(Welcome, 1)
    assert welcome.info.config.platform == "null" and welcome.side == Side()
    assert port.of(State, 1) == [State()]
    assert "protocol 99" in port.of(Dead, 2)[0].error.message
    assert port.of(Welcome, 2) == []


def test_a_refusal_names_the_first_sequence_and_queues_none(run: Run) -> None:
    port = run()
    port.commands.put([(1, Add(["a", "b"], [1] * 64, LONG)), (1, Call(5, "stats"))])
    until(lambda: port.of(Reply, 1))
    [refused] = port.of(Refused, 1)
    assert refused.id == "a" and refused.error.kind == "RequestError"
    assert port.of(Reply, 1)[0].result.num_waiting == 0


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [("nothing", {}), ("stats", {"x": 1}), ("pause", {}), ("sleep", {"level": []})],
)
def test_a_senseless_call_is_answered_and_the_loop_goes_on(
    run: Run, verb: str, arguments: dict[str, object]
) -> None:
    port = run()
    port.commands.put([(1, Call(1, verb, arguments)), (1, Call(2, "stats"))])
    until(lambda: len(port.of(Reply, 1)) == 2)
    bad, good = port.of(Reply, 1)
    assert bad.number == 1 and bad.error is not None
    assert good.number == 2 and good.error is None


def test_everybody_is_told_what_changes_and_before_the_reply(run: Run) -> None:
    port = run()
    port.commands.put([(1, Hello(Side())), (2, Hello(Side()))])
    port.commands.put([(1, Call(1, "pause", {"mode": "keep", "clear_cache": False}))])
    until(lambda: port.of(Reply, 1))
    port.commands.put([(2, None), (1, Call(2, "resume"))])
    until(lambda: len(port.of(Reply, 1)) == 2)
    seen = [n for _, n in port.news if isinstance(n, (State, Reply))]
    assert [type(n) for n in seen] == [State] * 4 + [Reply, State, Reply]
    assert [n.is_paused for n in port.of(State, 1)] == [False, True, False]
    assert [n.is_paused for n in port.of(State, 2)] == [False, True]


def test_who_may_start_another_one_hears_how_deeply_it_sleeps(run: Run) -> None:
    port = run()
    port.commands.put([(1, Hello(Side()))])
    verbs = [("sleep", level) for level in (2, 0)] + [
        ("wake_up", tags) for tags in (["scheduling"], None)
    ]
    for number, (verb, argument) in enumerate(verbs):
        named = {"level": argument, "mode": "keep"} if verb == "sleep" else {"tags": argument}
        port.commands.put([(1, Call(number, verb, named))])
    until(lambda: len(port.of(Reply, 1)) == 4)
    assert [news.level for news in port.of(Resting, None)] == [2, 2, None]


def test_room_is_told_when_it_changes_and_after_every_addition(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, 0.01)
    port = run(max_num_seqs=1, max_num_queued_reqs=2)
    port.commands.put([(1, Hello(Side()))])
    until(lambda: len(port.of(State, 1)) == 2)
    port.commands.put([(1, add(name, params=SamplingParams(max_tokens=4))) for name in "abc"])
    until(lambda: len(tokens(port, 1, "c")) == 4)
    until(lambda: port.of(State, 1)[-1].room == 3)
    rooms = [state.room for state in port.of(State, 1)]
    assert rooms == [math.inf, 3, 0, 1, 2, 3]
    # One that comes and ends within a step leaves the same room; who sent it must hear.
    port.commands.put([(1, add("d", params=SamplingParams(max_tokens=1)))])
    until(lambda: len(port.of(State, 1)) > len(rooms))
    assert port.of(State, 1)[-1].room in (2, 3)
    # So must who sent something that was refused.
    count = len(port.of(State, 1))
    port.commands.put([(1, Add(["e"], [1] * 64, LONG))])
    until(lambda: port.of(Refused, 1))
    until(lambda: len(port.of(State, 1)) > count)


def test_every_front_end_hears_which_of_its_additions_the_room_counts(run: Run) -> None:
    port = run(max_num_seqs=1, max_num_queued_reqs=9)
    port.commands.put([(1, Hello(Side())), (2, Hello(Side()))])
    port.commands.put([(1, Call(1, "pause", {"mode": "keep", "clear_cache": False}))])
    until(lambda: port.of(Reply, 1))
    for number, peer in ((7, 1), (3, 2), (8, 1)):
        port.commands.put([(peer, Add([f"{number}"], [1], LONG, number=number))])
    until(lambda: all(port.of(State, peer)[-1].room == 6 for peer in (1, 2)))
    seen = [[(s.room, s.last_add) for s in port.of(State, peer)[-4:]] for peer in (1, 2)]
    assert seen == [[(9, 0), (8, 7), (7, 7), (6, 8)], [(9, 0), (8, 0), (7, 3), (6, 3)]]


def test_without_limits_nobody_hears_of_room(run: Run) -> None:
    port = run()
    port.commands.put([(1, Hello(Side()))])
    port.commands.put([(1, add(name, params=SamplingParams(max_tokens=2))) for name in "abc"])
    until(lambda: len(tokens(port, 1, "c")) == 2)
    assert port.of(State, 1) == [State()]


def test_heartbeats_tell_of_a_step_that_takes_long(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, 0.5)
    port = run(engine_stall_timeout_s=0.4)  # a beat every 0.1 s
    until(lambda: len(port.of(Heartbeat, None)) >= 2)
    assert all(beat.busy_s == 0 for beat in port.of(Heartbeat, None))
    port.commands.put([(1, add("a", params=SamplingParams(max_tokens=2)))])
    until(lambda: len(tokens(port, 1, "a")) == 2)
    assert max(beat.busy_s for beat in port.of(Heartbeat, None)) > 0
    until(lambda: port.of(Heartbeat, None)[-1].num_steps == 2)


@pytest.mark.parametrize(
    ("error", "said", "traced"),
    [
        (ZeroDivisionError("boom"), "ZeroDivisionError: boom", True),
        (EngineDeadError("boom: rank 1 is gone"), "stopped: boom: rank 1 is gone", False),
    ],
)
def test_a_failing_core_is_the_end(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog, error: Exception, said: str, traced: bool
) -> None:
    """The log has a traceback unless the error's words say all."""

    def fail(self: NullWorker, plan: object) -> None:
        raise error

    monkeypatch.setattr(NullWorker, "execute", fail)
    port = run()
    port.commands.put([(1, add("a"))])
    until(lambda: port.of(EngineDeadError, None))
    [dead] = port.of(Dead, None)
    assert dead.error.kind == "EngineDeadError" and said in dead.error.message
    assert ("Traceback" in caplog.text) == traced and "boom" in caplog.text


def test_the_clock_counts_ticks_of_one_step() -> None:
    clock = StepClock()
    assert [clock.tick(0.5) for _ in range(3)] == [0, 0, 0]  # nothing runs
    clock.is_running = True
    assert [clock.tick(0.5) for _ in range(3)] == [0.5, 1.0, 1.5]
    clock.num_steps += 1  # one step right after the other
    assert [clock.tick(0.5) for _ in range(2)] == [0, 0.5]
    clock.is_running = False
    assert clock.tick(0.5) == 0
