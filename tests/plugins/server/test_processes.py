"""Each process of a server, killed, stopped or ended, while it serves and while it drains.

Afterwards nothing is left of it, its log says what happened, and what documentation promises holds.
Start-up has its cases in tests/core/engine/transport/test_process.py, ranks in tests/e2e.
"""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.plugins.server.test_supervisor import is_running, wait_for

NULL = ("demo", "--platform", "null", "--engine-restarts", "3")
GONE_S = 20.0


@pytest.fixture
def server(run_server):
    return run_server(*NULL)


def engine_of(server) -> int:
    """Return the engine's process, which any thread of the front end may have started."""
    found = []
    for listed in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        for child in listed.read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                if "transport.child" in Path(f"/proc/{child}/cmdline").read_text():
                    found.append(int(child))
    [engine] = found
    return engine


def answers(server) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        done = server.post("/v1/completions", prompt=[5], max_tokens=2)
        return done.status_code == 200
    return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_an_engine_that_ends_while_serving_is_replaced(server, number: int) -> None:
    first = engine_of(server)
    assert answers(server)
    os.kill(first, number)
    wait_for(lambda: not is_running(first))
    wait_for(lambda: answers(server))
    assert engine_of(server) != first
    assert "the engine process has ended" in server.log.read_text()
    second = engine_of(server)
    assert server.stop() == 0
    wait_for(lambda: not is_running(second), GONE_S)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_front_end_that_is_killed_takes_its_engine_along(server, stopped: bool) -> None:
    engine = engine_of(server)
    if stopped:
        os.kill(server.process.pid, signal.SIGSTOP)
    server.process.kill()
    assert server.process.wait(GONE_S) == -signal.SIGKILL
    wait_for(lambda: not is_running(engine), GONE_S)


@pytest.mark.slow
def test_a_front_end_that_stood_still_serves_on(server) -> None:
    engine = engine_of(server)
    os.kill(server.process.pid, signal.SIGSTOP)
    os.kill(server.process.pid, signal.SIGCONT)
    assert answers(server)
    assert engine_of(server) == engine


@contextlib.contextmanager
def draining(server) -> Iterator[None]:
    """Let a request run, and ask the server to end meanwhile."""
    body = {"prompt": [5], "max_tokens": 900, "ignore_eos": True, "stream": True}
    url = f"{server.url}/v1/completions"
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        next(lines)
        server.process.terminate()
        yield
        with contextlib.suppress(httpx.HTTPError):
            assert list(lines)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_engine_that_ends_while_draining_holds_nothing_up(run_server, number: int) -> None:
    server = run_server("demo", "--platform", "cpu")  # slow enough to be met at work
    engine = engine_of(server)
    with draining(server), contextlib.suppress(ProcessLookupError):
        os.kill(engine, number)
    assert server.process.wait(60) in (0, 1)
    wait_for(lambda: not is_running(engine), GONE_S)
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_too_few_open_files_are_named(tmp_path: Path) -> None:
    """Wherever the limit strikes, it is a sentence, and the user's to mend."""
    command = [sys.executable, "-m", "hotshoe.cli", "serve", *NULL, "--port", "0"]
    for limit in (8, 10, 12, 14):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            preexec_fn=lambda n=limit: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)),
        )
        assert "Traceback" not in done.stderr, (limit, done.stderr)
        assert done.returncode == 2, (limit, done.stderr)
        assert "open files" in done.stderr, (limit, done.stderr)


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_not_needed(run_server, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/proc/nowhere")
    server = run_server(*NULL)
    assert answers(server)
    assert server.stop() == 0


@pytest.mark.slow
def test_a_disk_that_is_full_ends_an_answer_in_words() -> None:
    command = [sys.executable, "-m", "hotshoe.cli", "generate", "demo", "--platform", "null"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "-p", "The", "--max-tokens", "2"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "cannot write any more" in done.stderr
    assert "Traceback" not in done.stderr


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.slow
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_two_servers_side_by_side_of_which_one_has_ipv6_alone(run_server) -> None:
    one = run_server(*NULL, "--host", "::1", ready=False)
    url = f"http://[::1]:{one.url.rpartition(':')[2]}"
    other = run_server(*NULL)

    def serves() -> bool:
        done = httpx.post(
            f"{url}/v1/completions", json={"prompt": [5], "max_tokens": 2}, timeout=60
        )
        return done.status_code == 200

    wait_for(serves)
    assert answers(other)
    other.process.kill()
    assert other.process.wait(GONE_S) == -signal.SIGKILL
    assert serves()
    assert one.stop() == 0
