"""Several API processes: they share a port and an engine, and are replaced when they die."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from tests.plugins.server.conftest import KEY, stopped
from tests.plugins.server.test_serving import Stream
from tests.plugins.server.test_sockets import self_signed
from tests.processes import is_running

from hotshoe import EngineConfig
from hotshoe.engine.wire.children import ChildProcess
from hotshoe.engine.wire.connection import Connection
from hotshoe.errors import EngineError
from hotshoe_server import supervisor
from hotshoe_server.config import ServerConfig
from hotshoe_server.socket_file import Listening
from hotshoe_server.supervisor import HOPELESS, READY, SERVING, TIMES, TRIES, Supervisor, Worker

NULL = ("demo", "--platform", "null", "--api-processes", "2")


def children(pid: int, word: str) -> list[int]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            if word in Path(f"/proc/{child}/cmdline").read_text():
                found.append(int(child))
    return found


def wait_for(condition, timeout_s: float = 60) -> None:
    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit, "it never came true"
        time.sleep(0.05)


@pytest.fixture
def server(run_server):
    return run_server(*NULL)


def test_they_answer_and_end(server) -> None:
    workers = children(server.process.pid, "api_process")
    engines = children(server.process.pid, "transport.child")
    assert (len(workers), len(engines)) == (2, 1)
    for _ in range(8):  # each time a new connection, which any of them may take
        answer = server.post("/v1/completions", prompt=[5], max_tokens=2)
        assert answer.status_code == 200
    assert server.stop() == 0
    wait_for(lambda: not any(map(is_running, workers + engines)))


@pytest.mark.slow
def test_one_that_dies_is_replaced(server) -> None:
    first, second = children(server.process.pid, "api_process")
    os.kill(first, signal.SIGKILL)
    wait_for(
        lambda: len(children(server.process.pid, "api_process")) == 2 and not is_running(first)
    )
    assert second in children(server.process.pid, "api_process")
    server.wait("/ready")
    assert server.stop() == 0


#: Runs when an interpreter starts: less patience, and a signal after which the loop stands still.
STUCK = """
import dataclasses, signal, time
from hotshoe_server import supervisor

supervisor.TIMES = dataclasses.replace(supervisor.TIMES, beat_s=0.1, silent_s=6.0)
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))
"""


@pytest.mark.parametrize(
    "number", [signal.SIGSTOP, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)]
)
def test_one_that_is_stuck_is_replaced(run_server, tmp_path, monkeypatch, number: int) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    server = run_server(*NULL)
    wait_for(lambda: len(children(server.process.pid, "api_process")) == 2)
    first, second = children(server.process.pid, "api_process")
    with stopped(first):  # so that it is the second one who answers, and thus serves
        assert server.get("/ready").status_code == 200
    os.kill(second, number)
    wait_for(lambda: not is_running(second))
    wait_for(lambda: len(children(server.process.pid, "api_process")) == 2)
    assert "API process 1 has been stuck for 6 s; killing it" in server.log.read_text()
    assert "API process 1 has ended (killed by SIGKILL)" in server.log.read_text()
    server.wait("/ready")
    assert server.stop() == 0


def test_silence_is_counted_in_looks() -> None:
    def looks_in(seconds: float) -> int:
        return int(seconds / TIMES.look_s)

    looks = looks_in(TIMES.silent_s)
    ours, theirs = map(Connection, socket.socketpair())
    with contextlib.closing(ours), contextlib.closing(theirs):
        worker = Worker(FakeChild(None, ours), None, 0.0, 0)
        # Until others have done their part, it has nothing to say.
        assert not any(worker.is_stuck() for _ in range(2 * looks_in(TIMES.start_s)))
        worker.let_load()
        assert theirs.fetch(60) == READY
        assert not any(worker.is_stuck() for _ in range(looks_in(TIMES.start_s) - 1))
        assert any(worker.is_stuck() for _ in range(3))
        for _ in range(3):
            theirs.send(SERVING)
            assert not any(worker.is_stuck() for _ in range(looks - 1))
        assert any(worker.is_stuck() for _ in range(3))


def test_one_that_is_late_answers_nobody_before_it_can(run_server) -> None:
    server = run_server(*NULL, ready=False)
    wait_for(lambda: len(children(server.process.pid, "api_process")) == 2)
    first, late = children(server.process.pid, "api_process")
    with stopped(late):
        server.wait("/ready")
        os.kill(first, signal.SIGSTOP)
    with stopped(first):
        assert server.post("/v1/completions", prompt=[5], max_tokens=1).status_code == 200


@pytest.mark.parametrize("index", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_replacement_answers_nobody_before_it_can(server, index: int) -> None:
    workers = children(server.process.pid, "api_process")
    with stopped(workers[1 - index]):
        os.kill(workers[index], signal.SIGKILL)
        assert server.post("/v1/completions", prompt=[5], max_tokens=1).status_code == 200


@pytest.mark.parametrize("how", ["running", "stopped"])
def test_nobody_outlives_the_supervisor(run_server, leftovers, how: str) -> None:
    server = run_server(*NULL, "--admin-socket", str(leftovers / "admin"))
    everybody = children(server.process.pid, "")
    assert len(everybody) == 4 and (leftovers / "admin").is_socket()
    with contextlib.ExitStack() as stack:
        if how == "stopped":
            for pid in everybody:
                stack.enter_context(stopped(pid))
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(map(is_running, everybody)))
    assert list(leftovers.iterdir()) == []


def test_the_admin_socket_is_there_again_when_its_process_has_died(run_server, leftovers) -> None:
    server = run_server(*NULL, "--admin-socket", str(leftovers / "admin"))
    for worker in children(server.process.pid, "api_process"):
        os.kill(worker, signal.SIGKILL)
    door = httpx.HTTPTransport(uds=str(leftovers / "admin"))
    with httpx.Client(transport=door, timeout=60) as client:

        def is_served() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return client.get("http://localhost/is_sleeping").status_code == 200
            return False

        wait_for(is_served)
    assert server.stop() == 0
    assert list(leftovers.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("timeout_s", "max_tokens", "last"),
    [("600", 100, "data: [DONE]"), ("0.1", 1500, '"code":"shutting_down"')],
)
def test_sigterm_ends_requests_of_all(
    run_server, timeout_s: str, max_tokens: int, last: str
) -> None:
    words = ("demo", "--api-processes", "2", "--shutdown-timeout-s", timeout_s)
    server = run_server(*words)
    streams = [Stream(server, max_tokens=max_tokens) for _ in range(3)]
    server.process.terminate()
    for stream in streams:
        assert last in stream.read().rstrip().splitlines()[-1]
    assert server.process.wait(120) == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded(run_server) -> None:
    server = run_server("/no/such/model", "--platform", "null", "--api-processes", "2", ready=False)
    assert server.process.wait(120) == 2
    assert "/no/such/model" in server.log.read_text()
    assert "Traceback" not in server.log.read_text()


def test_any_of_them_goes_on_from_a_stored_response(run_server) -> None:
    server = run_server("demo", "--platform", "null", "--api-processes", "3")
    first = server.post("/v1/responses", input="x", max_output_tokens=3)
    known = first.json()["id"]
    for _ in range(8):  # each time a new connection, which any of them may take
        assert server.get(f"/v1/responses/{known}").json() == first.json()
        body = {"input": "y", "max_output_tokens": 3, "previous_response_id": known}
        answer = server.post("/v1/responses", **body)
        assert answer.status_code == 200, answer.text
        known = answer.json()["id"]
        first = answer
    gone = httpx.delete(f"{server.url}/v1/responses/{known}", timeout=60, verify=False)
    assert gone.status_code == 200
    assert all(server.get(f"/v1/responses/{known}").status_code == 404 for _ in range(4))
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def test_a_mistake_that_all_would_repeat(run_server, tmp_path) -> None:
    file = tmp_path / "precious"
    file.write_text("x")
    for flag in ("--admin-socket", "--api-key-file"):
        server = run_server(*NULL, flag, str(file) if "socket" in flag else "/no", ready=False)
        assert server.process.wait(120) == 2
        log = server.log.read_text()
        assert log.count("hotshoe: error") == 1 and "Traceback" not in log


def test_api_processes_that_never_start_end_the_server(run_server, tmp_path, monkeypatch) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError('this uvloop is torn')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    server = run_server(*NULL, ready=False)
    assert server.process.wait(120) == 1
    log = server.log.read_text()
    assert "this uvloop is torn" in log
    assert log.count("giving up: what it wrote above says why") == 1
    assert log.count("has ended (exit code 1); starting another one") in (2, 3, 4)


def test_what_is_killed_before_it_serves_is_tried_again(run_server) -> None:
    server = run_server(*NULL, ready=False)
    wait_for(lambda: len(children(server.process.pid, "api_process")) == 2)
    for worker in children(server.process.pid, "api_process"):
        os.kill(worker, signal.SIGKILL)
    said = "has ended (killed by SIGKILL); starting another one"
    wait_for(lambda: server.log.read_text().count(said) == 2)
    server.wait("/ready")
    assert server.stop() == 0


def test_a_mistake_made_later_ends_nobody_who_serves(run_server, tmp_path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    server = run_server(*NULL, "--api-key-file", str(keys))
    first, second = children(server.process.pid, "api_process")

    def status() -> int:  # by a new connection
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"{server.url}/health"
        return httpx.get(url, headers=headers, timeout=60, verify=False).status_code

    with stopped(first):
        assert status() == 200  # so the second one serves
    keys.unlink()
    os.kill(first, signal.SIGKILL)
    said = f"API process 0 has ended (exit code {HOPELESS}); starting another one"
    wait_for(lambda: said in server.log.read_text())
    assert status() == 200
    keys.write_text(KEY)
    with stopped(second):
        assert status() == 200
    assert server.stop() == 0


def test_a_certificate_that_is_spoilt_later_is_named(run_server, tmp_path) -> None:
    certificate, key, _ = self_signed(tmp_path, "ours")
    server = run_server(*NULL, "--ssl-certfile", certificate, "--ssl-keyfile", key, ready=False)
    wait_for(lambda: "ready: demo" in server.log.read_text())
    first = children(server.process.pid, "api_process")[0]
    with stopped(first):  # so the other one serves
        assert httpx.get(f"{server.url}/ready", verify=False, timeout=60).status_code == 200
    Path(certificate).write_text("torn")
    os.kill(first, signal.SIGKILL)
    said = f"API process 0 has ended (exit code {HOPELESS}); starting another one"
    wait_for(lambda: said in server.log.read_text())
    log = server.log.read_text()
    assert f"hotshoe: error: --ssl-certfile {certificate}" in log and "Traceback" not in log
    assert server.stop() == 0


LIVES, WAITS, ENDED, FAILED = (True, None), (False, None), (True, -9), (False, 1)
#: One that the system does not let start.
UNABLE = (False, 0)
#: One that may load, and comes to no end of it.
HANGS = (False, "hangs")


@dataclasses.dataclass
class FakeChild:
    """What is asked of an API process; `code` None for one that lives."""

    code: int | None
    connection: Connection

    def kill(self) -> None:
        self.code = -9


async def watched(
    told: list[list[tuple[bool, int | None]]], engine: object, enough: list[int]
) -> tuple[int, list[int]]:
    """Let a supervisor watch processes that end as told.

    Args:
        told: For each place its processes one after the other, the last for ever: whether it has
            served, and with which code it has ended; None for one that lives.
        engine: As in `EngineProcess`, what is read of it.
        enough: Where so many have been started in each place, the supervisor is told to stop.

    Returns:
        The exit code, and how many were started in each place.
    """
    owner = Supervisor(EngineConfig(), ServerConfig(), {})
    started = [0] * len(told)

    def spawn(place: int, num_failed: int) -> Worker:
        now = told[place][min(started[place], len(told[place]) - 1)]
        started[place] += 1
        if now is UNABLE:
            raise OSError("out of memory")
        served, code = now
        if started == enough:
            owner._stop.set()
        ours, theirs = map(Connection, socket.socketpair())
        if served:
            theirs.send(SERVING)
        theirs.close()
        hangs = (served, code) == HANGS
        child = FakeChild(None if hangs else code, ours)
        ended = asyncio.create_task(asyncio.sleep(0))
        return Worker(child, ended, 0.0, num_failed, may_load=hangs)

    owner._workers = [spawn(place, 0) for place in range(len(told))]
    booting = asyncio.create_task(asyncio.sleep(0))
    await asyncio.wait_for(owner._watch(engine, booting, spawn), 60)
    for worker in owner._workers:
        worker.release()
    owner._shared_file.close()
    return owner._code, started


@pytest.mark.parametrize(
    ("told", "enough", "code"),
    [
        ([[FAILED], [WAITS]], [TRIES, 1], 1),
        ([[FAILED], [FAILED]], [TRIES, TRIES], 1),
        ([[FAILED, FAILED, ENDED] * 3 + [LIVES], [WAITS]], [10, 1], 0),
        ([[LIVES], [FAILED]], [1, 3 * TRIES], 0),
        ([[ENDED, UNABLE, UNABLE, LIVES], [LIVES]], [4, 1], 0),
        ([[ENDED, UNABLE], [WAITS]], [1 + TRIES, 1], 1),
        ([[(False, HOPELESS)], [WAITS]], [1, 1], HOPELESS),
        ([[LIVES], [(False, HOPELESS)]], [1, 2 * TRIES], 0),
    ],
)
def test_who_is_replaced_how_often(monkeypatch, caplog, told, enough: list[int], code: int) -> None:
    monkeypatch.setattr(supervisor, "TIMES", dataclasses.replace(TIMES, look_s=0.0, pause_s=0.0))
    engine = SimpleNamespace(is_restarting=False)
    found = asyncio.run(watched(told, engine, enough if code == 0 else []))
    assert found == (code, enough)
    gave_up = [line for line in caplog.messages if "giving up" in line]
    assert gave_up == (caplog.messages[-1:] if code == 1 else [])


@pytest.mark.parametrize(
    ("told", "enough", "code"),
    [
        ([[HANGS], [WAITS]], [TRIES, 1], 1),
        ([[HANGS] * (TRIES - 1) + [LIVES], [WAITS]], [TRIES, 1], 0),
        ([[LIVES], [HANGS]], [1, 2 * TRIES], 0),
    ],
)
def test_who_does_not_come_to_serve_is_killed(
    monkeypatch, caplog, told, enough: list[int], code: int
) -> None:
    hasty = dataclasses.replace(TIMES, look_s=0.001, pause_s=0.0, start_s=0.01)
    monkeypatch.setattr(supervisor, "TIMES", hasty)
    engine = SimpleNamespace(is_restarting=False)
    found = asyncio.run(watched(told, engine, enough if code == 0 else []))
    assert found == (code, enough)
    place = next(place for place, some in enumerate(told) if HANGS in some)
    said = f"API process {place} has not come to serve within 0.01 s; killing it"
    hung = [told[place][min(n, len(told[place]) - 1)] for n in range(enough[place])]
    # The last one is there when the watch ends, unless it was too much.
    assert caplog.messages.count(said) == (hung if code else hung[:-1]).count(HANGS)
    assert len(caplog.messages) > caplog.messages.count(said)


def test_nobody_is_replaced_while_the_engine_is(monkeypatch, caplog) -> None:
    monkeypatch.setattr(supervisor, "TIMES", dataclasses.replace(TIMES, look_s=0.0))
    asked = 0

    class Engine:
        @property
        def is_restarting(self) -> bool:
            nonlocal asked
            asked += 1
            return asked < 20

    assert asyncio.run(watched([[ENDED, LIVES]], Engine(), [2])) == (0, [2])
    assert caplog.messages == ["API process 0 has ended (killed by SIGKILL); starting another one"]
    assert asked == 20


def test_when_not_all_can_be_started_none_stays(monkeypatch) -> None:
    closed, started = [], []
    engine = SimpleNamespace(path="x", wait=lambda: None, close=lambda: closed.append(True))

    def spawn(self, engine_socket, listener, admin, index: int, num_failed: int) -> Worker:
        if index == 1:
            raise OSError(12, "Cannot allocate memory")
        started.append(ChildProcess(["sleep"], ["3600"]))  # a number more, which it adds
        return Worker(started[0], asyncio.create_task(asyncio.sleep(0)), 0.0, num_failed)

    monkeypatch.setattr(supervisor, "EngineProcess", lambda config: engine)
    monkeypatch.setattr(Supervisor, "_spawn", spawn)
    monkeypatch.setattr(supervisor, "signals_call", lambda call: contextlib.nullcontext())
    server = Supervisor(EngineConfig(), ServerConfig(api_processes=2), {})
    with socket.socket() as listener, pytest.raises(EngineError, match="API process 1 cannot be"):
        server.run(Listening(listener), None)
    server._shared_file.close()
    assert closed and started[0].wait(60) and started[0].code == -signal.SIGTERM
