"""Several API processes: they share a port and an engine, and are replaced when they die."""

import contextlib
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
from tests.plugins.server.conftest import stopped
from tests.plugins.server.test_serving import Stream

NULL = ("demo", "--platform", "null", "--api-processes", "2")


def children(pid: int, word: str) -> list[int]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            if word in Path(f"/proc/{child}/cmdline").read_text():
                found.append(int(child))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
    engines = children(server.process.pid, "engine.child")
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


def test_one_that_is_late_answers_nobody_before_it_can(run_server) -> None:
    server = run_server(*NULL, ready=False)
    wait_for(lambda: len(children(server.process.pid, "api_process")) == 2)
    first, late = children(server.process.pid, "api_process")
    with stopped(late):
        server.wait("/ready")
        os.kill(first, signal.SIGSTOP)
    with stopped(first):
        assert server.post("/v1/completions", prompt=[5], max_tokens=1).status_code == 200


@pytest.mark.parametrize("index", [0, 1])
def test_a_replacement_answers_nobody_before_it_can(server, index: int) -> None:
    workers = children(server.process.pid, "api_process")
    with stopped(workers[1 - index]):
        os.kill(workers[index], signal.SIGKILL)
        assert server.post("/v1/completions", prompt=[5], max_tokens=1).status_code == 200


def test_nobody_outlives_the_supervisor(run_server, leftovers) -> None:
    server = run_server(*NULL, "--admin-socket", str(leftovers / "admin"))
    everybody = children(server.process.pid, "")
    assert len(everybody) == 4 and (leftovers / "admin").is_socket()
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
    assert httpx.delete(f"{server.url}/v1/responses/{known}", timeout=60).status_code == 200
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
