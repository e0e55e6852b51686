"""Faults of the processes: whoever is killed or stopped, the others end or recover in time, and
nothing is left behind.
"""

import asyncio
import contextlib
import dataclasses
import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.processes import is_running, is_stopped

import hotshoe.engine.transport.process
from hotshoe import AsyncEngine, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.transport.process import EngineProcess
from hotshoe.engine.wire.children import ENGINE
from hotshoe.errors import (
    CheckpointError,
    ConfigError,
    EngineDeadError,
    EngineError,
    HotshoeError,
    MemoryLimitError,
    PluginError,
    RequestError,
)
from hotshoe.types import FinishReason

Start = Callable[..., AsyncEngine]
Configure = Callable[..., EngineConfig]
LONG = SamplingParams(max_tokens=60, ignore_eos=True)
#: Nothing takes that long, however busy the machine is; what hangs takes longer.
SOON_S = 20.0


@pytest.fixture(autouse=True)
def leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give every test a folder for temporary files, which must be empty in the end."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # sockets want short paths
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    within(SOON_S, lambda: not list(folder.iterdir()))
    folder.rmdir()


def within(seconds: float, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)


def pid_of(engine: AsyncEngine) -> int:
    return engine._link._owner.pid


async def collect(engine: AsyncEngine, start: int, max_tokens: int = 3) -> list[int]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    stream = engine.generate(TokensPrompt([start]), params)
    return [token async for update in stream for token in update.sequences[0].new_token_ids]


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGTERM, "closed")]
)
def test_a_killed_engine_fails_everyone_soon(start: Start, number: int, said: str) -> None:
    engine = start("process", {"step_s": 0.5})

    async def main() -> list[object]:
        running = [asyncio.create_task(collect(engine, i, 60)) for i in range(5)]
        while (await engine.stats()).num_running < 5:
            await asyncio.sleep(0.01)
        begin = time.monotonic()
        os.kill(pid_of(engine), number)
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        assert time.monotonic() - begin < SOON_S
        for call in (engine.check_health(), collect(engine, 1), engine.stats()):
            with pytest.raises(EngineDeadError):
                await call
        return outcomes

    for outcome in asyncio.run(main()):
        assert isinstance(outcome, EngineDeadError) and said in str(outcome)
    assert engine.num_restarts == 0


def test_a_killed_engine_is_replaced_as_often_as_allowed(start: Start, caplog) -> None:
    engine = start("process", {"step_s": 0.3}, engine_restarts=2)

    async def back() -> list[int]:
        while True:
            try:
                await engine.check_health()
                return await collect(engine, 7)
            except EngineDeadError:
                await asyncio.sleep(0.05)

    async def main() -> None:
        seen = {pid_of(engine)}
        for restarts in (1, 2):
            stream = engine.generate(TokensPrompt([1]), LONG)
            await anext(stream)
            shutil.rmtree(engine._link._owner.path.parent)  # as what cleans temporary files does
            os.kill(pid_of(engine), signal.SIGKILL)
            with pytest.raises(EngineDeadError):
                [update async for update in stream]
            assert await asyncio.wait_for(back(), 60) == [8, 9, 10]
            assert engine.num_restarts == restarts and not engine.is_paused
            assert not engine.is_over
            seen.add(pid_of(engine))
        assert len(seen) == 3
        os.kill(pid_of(engine), signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await collect(engine, 1)
        await asyncio.to_thread(within, SOON_S, lambda: engine.is_over)

    asyncio.run(main())
    assert caplog.text.count("the engine process has ended: killed by SIGKILL") == 3


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    own = hotshoe.engine.transport.process.LOG.name
    return [record.getMessage() for record in caplog.records if record.name == own]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGRTMIN + 5])
def test_an_engine_that_stays_dead_is_one_line_in_the_log(
    config: Configure, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    process = EngineProcess(config())
    process.wait()
    os.kill(process.pid, number)
    within(SOON_S, lambda: process.is_over)
    process.close()
    [line] = logged(caplog)
    name = "SIGKILL" if number == signal.SIGKILL else f"signal {number}"
    assert line == (
        f"{config().model}: the engine process has ended: killed by {name}; "
        "no other one is started (--engine-restarts 0)"
    )


@pytest.fixture
def kill(
    config: Configure, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., EngineProcess]]:
    """Kill an engine whose next ones cannot load, the first `num_bad` of them."""
    plain = EngineProcess._spawn
    running: list[EngineProcess] = []

    def make(num_bad: int, num_restarts: int) -> EngineProcess:
        good = config(engine_restarts=num_restarts)
        bad = config({"load_error": "a torn\nfile"}, engine_restarts=num_restarts)

        def spawn(self: EngineProcess) -> None:
            self._config = bad if 0 < self.num_restarts <= num_bad else good
            plain(self)

        monkeypatch.setattr(EngineProcess, "_spawn", spawn)
        running.append(EngineProcess(good))
        running[0].wait()
        os.kill(running[0].pid, signal.SIGKILL)
        return running[0]

    yield make
    running[0].close()


def test_why_other_engines_do_not_start_is_logged(
    kill: Callable[..., EngineProcess], monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setattr(
        hotshoe.engine.transport.process, "TIMES", dataclasses.replace(ENGINE, pause_s=0.01)
    )
    process = kill(num_bad=2, num_restarts=2)
    within(SOON_S, lambda: process.is_over)
    assert [line.partition(": ")[2] for line in logged(caplog)] == [
        "the engine process has ended: killed by SIGKILL; starting another one (1 of 2)",
        "another engine (1 of 2) did not start: a torn file; starting another one (2 of 2)",
        "another engine (2 of 2) did not start: a torn file; "
        "no other one is started (--engine-restarts 2)",
    ]


def test_an_engine_starts_behind_others_that_could_not(
    kill: Callable[..., EngineProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        hotshoe.engine.transport.process, "TIMES", dataclasses.replace(ENGINE, pause_s=0.01)
    )
    process = kill(num_bad=4, num_restarts=5)
    within(60, lambda: process.num_restarts == 5 and not process.is_restarting)
    assert not process.is_over
    engine = AsyncEngine.connect(process.path)
    assert asyncio.run(collect(engine, 1)) == [2, 3, 4]
    engine.close()


def test_a_pause_between_engines_ends_with_all(
    kill: Callable[..., EngineProcess], monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    slow = dataclasses.replace(ENGINE, pause_s=90.0, max_pause_s=90.0)
    monkeypatch.setattr(hotshoe.engine.transport.process, "TIMES", slow)
    process = kill(num_bad=2, num_restarts=2)
    within(SOON_S, lambda: "(1 of 2) did not start" in caplog.text)
    begin = time.monotonic()
    process.close()
    assert time.monotonic() - begin < SOON_S
    assert len(logged(caplog)) == 2


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_front_end_without_descriptors_finds_the_new_engine_later(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setattr(
        hotshoe.engine.transport.process, "TIMES", dataclasses.replace(ENGINE, pause_s=0.1)
    )
    engine = start("process", engine_restarts=1000)

    async def main() -> None:
        assert await collect(engine, 1) == [2, 3, 4]
        with no_descriptors():
            await asyncio.sleep(1)  # for some signs of life
            os.kill(pid_of(engine), signal.SIGKILL)
            while "(1 of 1000) did not start: [Errno 24]" not in caplog.text:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # for some attempts to find it
        while True:
            with contextlib.suppress(EngineDeadError):
                assert await collect(engine, 7) == [8, 9, 10]
                return
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(main(), 90))


#: What an engine is met at: where its worker stays meanwhile.
MET = {"sleep": "offload", "wake_up": "restore", "update_weights": "update_weights"}


@pytest.mark.parametrize(
    ("verb", "number"),
    [
        ("sleep", signal.SIGKILL),
        ("wake_up", signal.SIGKILL),
        ("update_weights", signal.SIGTERM),
        pytest.param("update_weights", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param("sleep", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("wake_up", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("update_weights", signal.SIGKILL, marks=pytest.mark.slow),
        ("sleep", signal.SIGSTOP),
        pytest.param("wake_up", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_an_engine_ends_while_it_falls_asleep_wakes_or_gets_weights(
    start: Start, hurry: Path, tmp_path: Path, monkeypatch, verb: str, number: int
) -> None:
    """Killed, it has done nothing of it. Asked to end, it does so afterwards."""
    quick = dataclasses.replace(ENGINE, stacks_s=0.1, pause_s=0.01)
    monkeypatch.setattr(hotshoe.engine.transport.process, "TIMES", quick)
    limits = {"engine_stall_timeout_s": 1.0} if number == signal.SIGSTOP else {}
    reached = tmp_path / "reached"
    faults = {"hold_at": MET[verb], "hurry": str(hurry), "reached": str(reached)}
    engine = start("process", faults, engine_restarts=9, **limits)

    async def main() -> None:
        if verb == "wake_up":
            await engine.sleep(1)
        arguments = ["a-directory"] if verb == "update_weights" else []
        call = asyncio.create_task(getattr(engine, verb)(*arguments))
        while not reached.exists():
            await asyncio.sleep(0.01)
        first = pid_of(engine)
        os.kill(first, number)
        if number == signal.SIGTERM:
            hurry.touch()
            await call
        else:
            with pytest.raises(EngineDeadError, match=r"SIGKILL|stuck: no sign of life"):
                await call
        while engine.num_restarts == 0:
            await asyncio.sleep(0.01)
        done = number == signal.SIGTERM
        assert engine.is_sleeping == (verb == ("sleep" if done else "wake_up"))
        assert not is_running(first)
        await engine.wake_up()
        assert await collect(engine, 7) == [8, 9, 10]
        assert not engine.is_sleeping

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_engine_that_dies_asleep_comes_back_asleep(start: Start) -> None:
    """Also where it was awake in part, and where nobody but its owner told it to sleep."""
    engine = start("process", engine_restarts=2)

    async def main() -> None:
        await engine.sleep(2)
        await engine.wake_up(["weights"])
        for restarts in (1, 2):
            os.kill(pid_of(engine), signal.SIGKILL)
            while engine.num_restarts < restarts:
                await asyncio.sleep(0.01)
            assert engine.is_sleeping
        asked = asyncio.create_task(collect(engine, 7))
        stats = await engine.stats()
        assert stats.is_sleeping and not stats.num_steps
        with pytest.raises(RequestError, match="weights before"):
            await engine.wake_up(["kv_cache"])
        await engine.wake_up()
        assert await asked == [8, 9, 10]

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("fault", [pytest.param("stopped", marks=pytest.mark.slow), "hanging"])
def test_a_stuck_engine_is_killed_and_replaced(start: Start, capfd, fault: str) -> None:
    faults = {"hang_step": 5, "hang_s": 60} if fault == "hanging" else {}
    # So long, and so often, that a slow machine may make others seem stuck as well.
    engine = start("process", faults, engine_stall_timeout_s=4.0, engine_restarts=5)

    async def main() -> None:
        first = pid_of(engine)
        assert await collect(engine, 1, 1) == [2]
        if fault == "stopped":
            os.kill(first, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(EngineDeadError, match="stuck"):
            await collect(engine, 1, 50)
        assert time.monotonic() - begin < SOON_S
        within(SOON_S, lambda: not is_running(first))
        while True:
            try:
                assert await collect(engine, 1, 2) == [2, 3]
                return
            except EngineDeadError:
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(main(), 90))
    stack = "Fatal Python error: Aborted" in capfd.readouterr().err
    assert stack == (fault == "hanging"), "one that is stopped cannot print where it is"


def test_a_suspended_machine_has_no_stuck_engine(tmp_path: Path) -> None:
    code = """
import asyncio
from hotshoe import AsyncEngine, EngineConfig, SamplingParams, TokensPrompt

async def main():
    config = EngineConfig("demo", platform="null", engine_stall_timeout_s=2.0)
    engine = AsyncEngine(config, transport="process")
    print(engine._link._owner.pid, flush=True)
    await asyncio.to_thread(input)
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    tokens = [t async for u in engine.generate(TokensPrompt([1]), params)
              for t in u.sequences[0].new_token_ids]
    print(tokens, engine.num_restarts, flush=True)
    engine.close()

asyncio.run(main())
"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as front:
        everybody = [front.pid, int(front.stdout.readline())]
        for number, seconds in ((signal.SIGSTOP, 3.0), (signal.SIGCONT, 1.0)):
            for pid in everybody:
                os.kill(pid, number)
            time.sleep(seconds)
        said, _ = front.communicate("\n", timeout=60)
    assert said == "[2, 3] 0\n"


STARTS = {
    "checkpoint": ({"faults": {"load_error": "the file is torn"}}, CheckpointError, "is torn"),
    "memory": ({"kv_cache_memory_bytes": 1}, MemoryLimitError, "max_model_len"),
    "option": ({"max_model_len": 65}, ConfigError, "positions"),
    "model": ({"model": "/nowhere", "skip_tokenizer_init": True}, CheckpointError, "no model at"),
    "platform": ({"platform": "nul"}, PluginError, "did you mean null"),
    "plugin": ({"disable_plugins": ["nothing"]}, PluginError, "no plugin 'nothing'"),
}


#: Of these one kind of error each is enough of a proof that all come back.
OTHERS = ("memory", "model", "platform")


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in OTHERS else [])
        for name, case in STARTS.items()
    ],
)
def test_errors_of_the_start_come_back_as_they_were(
    config: Configure, options: dict[str, object], kind: type[HotshoeError], match: str
) -> None:
    options = dict(options)
    made = config(options.pop("faults", None))
    made = dataclasses.replace(made, **options)
    with pytest.raises(kind, match=match):
        AsyncEngine(made, transport="process")


def test_a_process_that_cannot_be_started_is_an_error(config: Configure, monkeypatch) -> None:
    def spawn(*_: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(hotshoe.engine.transport.process, "ChildProcess", spawn)
    with pytest.raises(EngineError, match=r"cannot be started: .*unavailable; .*limits on proc"):
        AsyncEngine(config(), transport="process")


def test_an_interpreter_that_may_not_be_run_is_the_users_to_mend(
    config: Configure, leftovers: Path, monkeypatch
) -> None:
    python = leftovers / "python"
    python.write_text("")  # no right to run it
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(hotshoe.engine.transport.process, "COMMAND", (str(python), "-m", "x"))
    with pytest.raises(ConfigError, match="/python, which this user may not run"):
        AsyncEngine(config(), transport="process")
    python.unlink()


def test_a_taken_socket_is_named(config: Configure, leftovers: Path) -> None:
    path = leftovers / "x.sock"
    first = EngineProcess(config(), path)
    first.wait()
    second = EngineProcess(config(), path)
    with pytest.raises(ConfigError, match="taken; another engine listens"):
        second.wait()
    engine = AsyncEngine.connect(path)
    assert asyncio.run(collect(engine, 1)) == [2, 3, 4]
    engine.close()
    first.close()
    assert not path.exists()


def test_a_file_in_the_way_is_left_alone(config: Configure, leftovers: Path) -> None:
    path = leftovers / "x.sock"
    path.write_text("mine")
    process = EngineProcess(config(), path)
    with pytest.raises(ConfigError, match="taken"):
        process.wait()
    assert path.read_text() == "mine"
    path.unlink()


def test_a_socket_that_nobody_serves_is_replaced(config: Configure, leftovers: Path) -> None:
    path = leftovers / "x.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    process = EngineProcess(config(), path)
    process.wait()
    process.close()


def test_a_path_too_long_for_a_socket_is_an_error(config: Configure, leftovers: Path) -> None:
    process = EngineProcess(config(), leftovers / ("x" * 200))
    with pytest.raises(ConfigError, match="socket"):
        process.wait()


def test_only_its_user_can_reach_the_socket(config: Configure) -> None:
    process = EngineProcess(config())
    process.wait()
    assert process.path.parent.stat().st_mode & 0o777 == 0o700
    assert process.path.stat().st_mode & 0o777 == 0o600
    process.close()
    assert not process.path.parent.exists()


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3, 0.6])
def test_sigterm_in_every_phase_of_the_start(config: Configure, delay_s: float) -> None:
    process = EngineProcess(config({"load_s": 0.2}))
    time.sleep(delay_s)
    pid = process.pid
    os.kill(pid, signal.SIGTERM)
    begin = time.monotonic()
    with contextlib.suppress(EngineError):
        process.wait()
        within(SOON_S, lambda: process.is_over)  # it had started
        process.close()
    assert time.monotonic() - begin < SOON_S
    assert not is_running(pid)


def test_an_engine_that_starts_while_all_is_closed_ends_at_once(
    config: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, plain = EngineProcess(config(engine_restarts=1)), EngineProcess._spawn
    process.wait()

    def spawn(self: EngineProcess) -> None:
        self._closing.set()
        self._config = config({"load_s": 600.0})
        plain(self)

    monkeypatch.setattr(EngineProcess, "_spawn", spawn)
    os.kill(process.pid, signal.SIGKILL)
    process._watcher.join(SOON_S)
    assert not process._watcher.is_alive()
    process.close()


@pytest.mark.parametrize("phase", ["load", "serve"])
def test_a_stopped_engine_is_ended_by_force(
    config: Configure, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    impatient = dataclasses.replace(ENGINE, leave_s=0.1)
    monkeypatch.setattr(hotshoe.engine.transport.process, "TIMES", impatient)
    process = EngineProcess(config({"load_s": 90} if phase == "load" else None))
    if phase == "serve":
        process.wait()
    os.kill(process.pid, signal.SIGSTOP)
    within(SOON_S, lambda: is_stopped(process.pid))
    process.close()
    assert not is_running(process.pid)


FRONT = """
import asyncio, sys
from hotshoe import AsyncEngine, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.transport import process

plain = process.EngineProcess._spawn
def spawn(self):
    plain(self)
    print(self.pid, flush=True)
process.EngineProcess._spawn = spawn
async def main():
    if sys.argv[2]:
        await eval(sys.argv[2])
        print("token", flush=True)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    async for _ in engine.generate(TokensPrompt([1]), params):
        print("token", flush=True)
    await asyncio.sleep(60)
engine = AsyncEngine(EngineConfig(**eval(sys.argv[1])), transport="process")
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("begin", signal.SIGKILL),
        ("load", signal.SIGINT),
        ("serve", signal.SIGTERM),
        ("stuck", signal.SIGKILL),
        ("stopped", signal.SIGKILL),
        ("updating", signal.SIGKILL),
        pytest.param("load", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("serve", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("serve", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("asleep", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_killed_front_end_takes_its_engine_along(
    config: Configure, tmp_path: Path, phase: str, number: int
) -> None:
    reached = tmp_path / "reached"
    called = {
        "asleep": "engine.sleep(1)",
        "updating": 'engine._call("update_weights", path="there")',
    }
    held = {"reached": str(reached)}
    faults = {
        "asleep": held | {"hold_at": "nothing"},
        "updating": held | {"hold_at": "update_weights"},
        "load": {"load_s": 90},
        "stuck": {"hang_step": 1, "hang_s": 90},
        "serve": {"step_s": 0.01},
        "stopped": {"step_s": 0.01},
    }
    made = config(faults.get(phase))
    options = {"model": made.model, "platform": "faulty", "platform_options": made.platform_options}
    with subprocess.Popen(
        [sys.executable, "-c", FRONT, repr(options), called.get(phase, "")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # none who could let a stopped engine go on stays in it
    ) as front:
        child = int(front.stdout.readline())
        if phase == "load":
            time.sleep(1.5)
        elif phase == "updating":
            within(SOON_S, reached.exists)
        elif phase != "begin":
            assert front.stdout.readline() == "token\n"
        assert is_running(child)
        if phase == "stopped":
            os.kill(child, signal.SIGSTOP)
            within(SOON_S, lambda: is_stopped(child))
        os.kill(front.pid, number)
        try:
            within(SOON_S, lambda: not is_running(child))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        front.wait(SOON_S)


def test_several_front_ends_share_one_engine(start: Start, hurry: Path) -> None:
    engine = start("process", {"step_s": 0.5, "hurry": str(hurry)}, max_num_seqs=4)
    path = engine._link._path
    hurry.touch()

    async def main() -> None:
        other = AsyncEngine.connect(path)
        assert other.info.num_blocks == engine.info.num_blocks
        one, two = await asyncio.gather(collect(engine, 1, 5), collect(other, 100, 5))
        assert one == [2, 3, 4, 5, 6] and two == [101, 102, 103, 104, 105]
        await engine.pause("keep")
        await other.stats()
        assert other.is_paused
        await other.resume()
        hurry.unlink()
        gone = asyncio.create_task(collect(other, 1, 60))
        stays = asyncio.create_task(collect(engine, 1, 20))
        while (await engine.stats()).num_running < 2:
            await asyncio.sleep(0.01)
        await engine.pause("keep")
        other.close()
        with pytest.raises(EngineDeadError):
            await gone
        while (await engine.stats()).num_waiting == 2:  # without a step
            await asyncio.sleep(0.01)
        await engine.resume()
        hurry.touch()
        assert await stays == list(range(2, 22))

    asyncio.run(main())


def test_any_front_end_ends_the_requests_of_all(start: Start) -> None:
    engine = start("process", {"step_s": 0.5}, max_num_seqs=4)
    running: set[str] = set()

    async def last(client: AsyncEngine, request_id: str) -> FinishReason | None:
        params = SamplingParams(max_tokens=1000, ignore_eos=True)
        async for update in client.generate(TokensPrompt([1]), params, request_id):
            running.add(request_id)
            reason = update.sequences[0].finish_reason
        return reason

    async def main() -> None:
        other = AsyncEngine.connect(engine._link._path)
        clients = (engine, other, other)
        tasks = [asyncio.create_task(last(c, i)) for c, i in zip(clients, "abc", strict=True)]
        while len(running) < 3:
            await asyncio.sleep(0.02)
        await engine.abort_everywhere(["b", "unknown"])
        assert await tasks[1] is FinishReason.ABORT
        assert not tasks[0].done() and not tasks[2].done()
        await other.abort_everywhere()
        assert await asyncio.gather(*tasks) == [FinishReason.ABORT] * 3
        other.close()

    asyncio.run(main())


def test_a_further_front_end_finds_the_new_engine(start: Start) -> None:
    engine = start("process", engine_restarts=1)
    other = AsyncEngine.connect(engine._link._path)

    async def main() -> None:
        assert await collect(other, 1) == [2, 3, 4]
        os.kill(pid_of(engine), signal.SIGKILL)
        while other.num_restarts == 0:
            await asyncio.sleep(0.01)
        assert await collect(other, 1) == [2, 3, 4]

    asyncio.run(asyncio.wait_for(main(), 60))
    other.close()
    late = AsyncEngine.connect(engine._link._path)  # which did not see it
    assert late.num_restarts == 1
    late.close()


def test_nobody_listens() -> None:
    with pytest.raises(EngineError, match="no engine listens at /nowhere"):
        AsyncEngine.connect("/nowhere")


def test_what_a_command_prints_is_its_own(config: Configure, capfd) -> None:
    process = EngineProcess(config())
    process.wait()
    process.close()
    process.close()
    assert capfd.readouterr().out == ""
