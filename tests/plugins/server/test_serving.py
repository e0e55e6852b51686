"""A server's life, as processes: start, signals in every phase, drain, ports, dead engines.

Most run on the null platform, whose tokens come at once; where time must pass, the bundled model
writes a long text.
"""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.plugins.server.conftest import RunningServer, stopped
from tests.plugins.server.test_sockets import self_signed
from tests.processes import is_running

from hotshoe_server import serving
from hotshoe_server.admission import answer_while_loading
from hotshoe_server.call import Call
from hotshoe_server.config import ServerConfig
from hotshoe_server.extensions import Endpoint, Parts
from hotshoe_server.protocol import BoundedProtocol
from hotshoe_server.serving import Server, Start
from hotshoe_server.sockets import open_port
from hotshoe_server.sse import EventStream

NULL = ("demo", "--platform", "null")
LONG = {"prompt": "One day", "max_tokens": 1500, "ignore_eos": True, "stream": True}


#: What a library does to whoever imports it, too late for the start to go on without it.
TORN_PLUGIN = """
import sys
from hotshoe.plugins import hookimpl
from hotshoe_server.extensions import ServerExtension

HOTSHOE_HOOK_API = 2
@hookimpl
def hotshoe_server_extensions():
    return {"torn": "hotshoe_torn:EXTENSION"}
"""
TORN_BUILD = "EXTENSION = ServerExtension(build=lambda server, options: %s)"
TORN_LIFESPAN = """
import asyncio, contextlib
from hotshoe_server import extensions
from hotshoe_server.extensions import Parts

@contextlib.asynccontextmanager
async def lifespan():
    extensions.LEAVE_S = 0.5
    %s
    yield
    %s

EXTENSION = ServerExtension(build=lambda server, options: Parts(lifespan=lifespan))
"""


class Stream:
    """A streamed answer, past its first event."""

    def __init__(self, server, **body: object) -> None:
        self._client = httpx.Client(timeout=60, verify=False)
        request = self._client.build_request(
            "POST", server.url + "/v1/completions", json={**LONG, **body}
        )
        self._response = self._client.send(request, stream=True)
        assert self._response.status_code == 200
        self._lines = self._response.iter_lines()
        assert next(self._lines).startswith("data: ")

    def read(self) -> str:
        """Return the rest."""
        text = "\n".join(self._lines)
        self.close()
        return text

    def close(self) -> None:
        self._response.close()
        self._client.close()


def load_of(server) -> dict[str, float]:
    return server.get("/load").json()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def wait_for(condition, timeout_s: float = 60) -> None:
    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit, "it never came true"
        time.sleep(0.02)


def test_what_needs_logits_is_refused_where_there_are_none(run_server) -> None:
    server = run_server(*NULL)
    for stream in (False, True):
        body = {"prompt": "x", "logprobs": 1, "stream": stream}
        answer = server.post("/v1/completions", **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprobs")


def test_it_starts_answers_and_ends(run_server, tmp_path) -> None:
    admin = tmp_path / "admin.sock"
    server = run_server(*NULL, "--admin-socket", str(admin))
    answer = server.post("/inference/v1/generate", token_ids=[7], max_tokens=3).json()
    assert answer["choices"][0]["token_ids"] == [8, 9, 10]
    assert admin.stat().st_mode & 0o777 == 0o600
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(admin)), base_url="http://x", timeout=60
    ) as door:
        assert door.post("/pause").json() == {"done": True}
        assert door.post("/resume").json() == {"done": True}
    assert server.post("/pause").status_code == 403
    engines = children(server.process.pid)
    assert server.stop() == 0
    assert not admin.exists()
    wait_for(lambda: not any(map(is_running, engines)))


def test_a_taken_port_is_known_before_the_model_loads(run_server) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["-m", "hotshoe.cli", "serve", "/no/such/model", "--port", port]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"port {port} of 127.0.0.1 is taken" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prot", "1"], "unknown flag --prot; did you mean --port?"),
        (["/no/such/model", "--platform", "null"], "no model at /no/such/model"),
        (["demo", "none"], "so these are 2 (demo, none): leave out what is no model"),
        (["--admin-socket", "/no/such/folder/x"], "cannot listen"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (["--port", "70000"], "port must be between 0 and 65535"),
                (["--tool-call-parser", "hermse"], "unknown tool parser"),
                (["--api-key-file", "/no/such/file"], "--api-key-file: cannot read the keys"),
                (["demo", "--host", "256.1.1.1"], "choose others with --host"),
                (["demo", "--api-processes", "2", "--no-engine-process"], "process of its own"),
            )
        ),
    ],
)
def test_mistakes_end_with_2(arguments: list[str], message: str) -> None:
    words = [sys.executable, "-m", "hotshoe.cli", "serve", *arguments]
    if "--port" not in arguments:
        words += ["--port", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr and "listening" not in done.stderr


@pytest.fixture
def run_torn(run_server, tmp_path, monkeypatch) -> Callable[..., RunningServer]:
    """Start a server with an extension of this source."""

    def run(source: str, *arguments: str, ready: bool = True) -> RunningServer:
        (tmp_path / "hotshoe_torn.py").write_text(TORN_PLUGIN + source)
        info = tmp_path / "hotshoe_torn-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hotshoe-torn\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[hotshoe]\ntorn = hotshoe_torn\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        return run_server(*NULL, *arguments, ready=ready)

    return run


@pytest.mark.parametrize(
    ("processes", "source", "cause"),
    [
        ("1", TORN_BUILD % "None", "TypeError: build returned None instead of Parts"),
        ("2", TORN_BUILD % "sys.exit(0)", "SystemExit: 0"),
        ("1", TORN_LIFESPAN % ("sys.exit(0)", ""), "SystemExit: 0"),
        *(
            pytest.param(*case, "SystemExit: 0", marks=pytest.mark.slow)
            for case in (
                ("1", TORN_BUILD % "sys.exit(0)"),
                ("2", TORN_LIFESPAN % ("sys.exit(0)", "")),
            )
        ),
    ],
)
def test_an_extension_that_cannot_start_is_named(
    run_torn, processes: str, source: str, cause: str
) -> None:
    server = run_torn(source, "--api-processes", processes, ready=False)
    assert server.process.wait(120) == 2
    log = server.log.read_text()
    assert log.count(f"hotshoe: error: server extension torn is broken: {cause}") == 1
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("end", "cause"),
    [("sys.exit(5)", "SystemExit: 5"), ("await asyncio.sleep(3600)", "it takes more than 0.5 s")],
)
def test_an_extension_that_does_not_end_is_named(run_torn, end: str, cause: str) -> None:
    server = run_torn(TORN_LIFESPAN % ("", end))
    [engine] = children(server.process.pid)
    assert server.stop() == 0
    assert not is_running(engine)
    log = server.log.read_text()
    assert log.splitlines()[-1] == f"server extension torn did not end in order: {cause}"
    assert "Traceback" not in log


def test_an_extension_that_is_spoilt_later_is_named(run_torn, tmp_path) -> None:
    server = run_torn(TORN_LIFESPAN % ("", ""), "--api-processes", "2")
    first = next(pid for pid in children(server.process.pid) if "api_process" in command_of(pid))
    with stopped(first):  # so the other one serves
        assert server.get("/ready").status_code == 200
    (tmp_path / "hotshoe_torn.py").write_text(TORN_PLUGIN)
    os.kill(first, signal.SIGKILL)
    said = "hotshoe: error: server extension torn is broken: AttributeError"
    wait_for(lambda: said in server.log.read_text())
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def test_a_second_signal_while_an_extension_starts() -> None:
    server = Server(ServerConfig(), None, {}, lambda: None, print)

    async def enter() -> None:
        async with asyncio.timeout(None) as server._entering:
            server._on_signal()
            try:
                await asyncio.sleep(3600)
            finally:
                server._on_signal()  # while what was interrupted cleans up

    with pytest.raises(TimeoutError):
        asyncio.run(enter())


#: Runs when an interpreter starts: the supervisor loses patience when it is told that somebody
#: hangs, and has it again when that one was killed.
IMPATIENT = """
import dataclasses, signal
from hotshoe_server import supervisor

def have(start_s):
    supervisor.TIMES = dataclasses.replace(supervisor.TIMES, start_s=start_s)

def kill(*arguments):
    real_kill(*arguments)
    have(3600.0)

real_kill, supervisor.Supervisor._kill = supervisor.Supervisor._kill, kill
have(3600.0)
signal.signal(signal.SIGUSR1, lambda *_: have(0.0))
"""
#: An extension's lifespan that hangs, the first time.
HANGING = """
import os, signal, time

def hangs():
    try:
        os.close(os.open(%r, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    os.kill(os.getppid(), signal.SIGUSR1)
    return True
"""


@pytest.mark.parametrize(
    "hang",
    [pytest.param("await asyncio.sleep(3600)", marks=pytest.mark.slow), "time.sleep(3600)"],
)
def test_one_whose_extension_never_starts_is_replaced(
    run_torn, leftovers, tmp_path, hang: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    begin = f"{hang} if hangs() else None"
    source = HANGING % str(tmp_path / "hung") + TORN_LIFESPAN % (begin, "")
    server = run_torn(source, "--api-processes", "2")
    log = server.log.read_text()
    assert log.count("API process 0 has not come to serve within 0 s; killing it") == 1
    assert log.count("API process 0 has ended (killed by SIGKILL); starting another one") == 1
    assert server.post("/v1/completions", prompt=[1], max_tokens=1).status_code == 200
    assert server.stop() == 0
    assert list(leftovers.iterdir()) == []


def test_an_extension_that_never_starts_does_not_keep_the_server(run_torn) -> None:
    begin = "print('it enters', file=sys.stderr, flush=True); await asyncio.sleep(3600)"
    server = run_torn(TORN_LIFESPAN % (begin, ""), ready=False)
    wait_for(lambda: "it enters" in server.log.read_text())
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def test_one_file_configures_engine_and_server(run_server, tmp_path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("platform: null\nserved_model_name: [mine]\nmax-model-len: 64\n")
    config.write_text(config.read_text().replace("null", '"null"'))
    server = run_server("demo", "--config", str(config))
    [card] = server.get("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("mine", 64)


@pytest.mark.slow
def test_an_open_server_without_a_key_warns(run_server) -> None:
    server = run_server(*NULL, "--host", "0.0.0.0")
    assert "WARNING" in server.log.read_text()


@pytest.mark.parametrize(
    ("delay_s", "processes"),
    [
        (0.0, 1),
        (2.0, 1),
        (1.0, 2),
        # Moments between these.
        pytest.param(0.5, 1, marks=pytest.mark.slow),
        pytest.param(0.0, 2, marks=pytest.mark.slow),
    ],
)
def test_sigterm_while_it_starts(
    run_server, leftovers, tmp_path, delay_s: float, processes: int
) -> None:
    words = ("--admin-socket", str(tmp_path / "admin"), "--api-processes", str(processes))
    server = run_server("demo", *words, ready=False)
    assert server.url  # it listens
    time.sleep(delay_s)
    engines = children(server.process.pid)
    assert server.stop() == 0
    wait_for(lambda: not any(map(is_running, engines)))
    assert not (tmp_path / "admin").exists()
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_while_it_loads_only_liveness_is_green(run_server) -> None:
    server = run_server("demo", ready=False)
    server.wait("/live")
    response = server.get("/ready")
    if response.status_code != 200:  # unless it has loaded meanwhile
        assert response.json()["error"]["code"] == "loading"
        assert response.headers["retry-after"]
    server.wait("/ready")


def test_sigterm_lets_requests_end(run_server) -> None:
    server = run_server("demo")
    stream = Stream(server, max_tokens=150)
    [engine] = children(server.process.pid)
    os.kill(engine, signal.SIGSTOP)  # so that the request does not end before the server is asked
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: server.get("/ready").status_code == 503)
    refused = server.post("/v1/completions", prompt="x")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    os.kill(engine, signal.SIGCONT)
    text = stream.read()
    assert '"finish_reason":"length"' in text and text.rstrip().endswith("data: [DONE]")
    assert server.process.wait(120) == 0


@pytest.mark.slow
def test_sigterm_ends_a_server_whose_engine_is_stopped(run_server) -> None:
    """What it was asked for cannot end; the server does, and nothing is left."""
    server = run_server(*NULL, "--shutdown-timeout-s", "1")
    [engine] = children(server.process.pid)
    os.kill(engine, signal.SIGSTOP)
    body = b'{"prompt":[1],"max_tokens":2}'
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
    )
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(head.encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 100 ")
        client.sendall(body)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        answer = client.recv(65536)
    assert server.process.returncode == 0
    assert not is_running(engine)
    assert b"503" in answer


def test_sigterm_answers_who_has_not_sent_all(run_server) -> None:
    server = run_server(*NULL)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        "content-length: 100\r\nexpect: 100-continue\r\n\r\n"
    )
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        answer = client.makefile("rb")
        client.sendall(head.encode())
        assert answer.readline().startswith(b"HTTP/1.1 100 ")  # so it reads
        client.sendall(b"{")
        server.process.terminate()
        text = answer.read().decode()
    assert "HTTP/1.1 503 " in text and '"code":"shutting_down"' in text
    assert server.process.wait(120) == 0
    said = server.log.read_text().splitlines()
    assert said[-1] == "shutting down; requests that run: 0"


def test_an_answer_that_nobody_takes_ends_with_the_server(open_http, monkeypatch, caplog) -> None:
    monkeypatch.setattr(serving, "FLUSH_S", 0.1)
    is_full, ended = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(BoundedProtocol, "_await_reader", lambda connection: is_full.set())

    async def flood() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(2**20)
        finally:
            ended.set()

    async def answer(call: Call) -> EventStream:
        return EventStream(b"", flood())

    http = open_http([Parts(endpoints=[Endpoint("GET", "/flood", answer, "Too much")])])
    server = Server(ServerConfig(), None, {}, lambda: None, print)

    async def connect(listener: socket.socket) -> None:
        async with server._listen(http.app, listener):
            _, writer = await asyncio.open_connection(*listener.getsockname(), limit=1)
            writer.write(b"GET /flood HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            await asyncio.wait_for(is_full.wait(), 60)
        await asyncio.wait_for(ended.wait(), 60)
        writer.close()

    with open_port("127.0.0.1", 0) as listener:
        asyncio.run(connect(listener))
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.slow
def test_sigterm_aborts_what_takes_too_long(run_server) -> None:
    server = run_server("demo", "--shutdown-timeout-s", "0.3")
    stream = Stream(server)
    server.process.send_signal(signal.SIGTERM)
    text = stream.read()
    assert '"code":"shutting_down"' in text.rstrip().splitlines()[-1]
    assert server.process.wait(120) == 0


@pytest.mark.parametrize("processes", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_a_second_signal_aborts_at_once(run_server, processes: str) -> None:
    words = ("--shutdown-timeout-s", "600", "--api-processes", processes)
    server = run_server("demo", *words)
    stream = Stream(server)
    [engine] = [pid for pid in children(server.process.pid) if "transport.child" in command_of(pid)]
    with stopped(engine):  # so that the request does not end by itself
        server.process.terminate()
        wait_for(lambda: "shutting down" in server.log.read_text())
        assert server.process.poll() is None
        server.process.terminate()

    def has_ended() -> bool:
        server.process.terminate()  # again, as two that come together are one
        return server.process.poll() is not None

    wait_for(has_ended)
    assert '"code":"shutting_down"' in stream.read().rstrip().splitlines()[-1]
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def test_a_deadline_ends_a_long_answer(run_server) -> None:
    server = run_server("demo", "--request-timeout-s", "0.05")
    answer = server.post("/v1/completions", **{**LONG, "stream": False})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    wait_for(lambda: load_of(server)["server_load"] == 0)
    assert load_of(server)["kv_cache_usage"] == 0


#: Runs when an interpreter starts.
JUMPING_CLOCK = """
import time

time.time = lambda: time.time_ns() / 1e9
real_ns = time.time_ns
time.time_ns = lambda: real_ns() + (3600 if int(time.monotonic() * 10) % 2 else -7200) * 10**9
"""


def test_a_system_clock_that_jumps(run_server, tmp_path, monkeypatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(JUMPING_CLOCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    server = run_server(*NULL, "--request-timeout-s", "60", "--engine-stall-timeout-s", "60")
    created: set[int] = set()

    def has_jumped() -> bool:
        answer = server.post("/v1/completions", prompt=[1], max_tokens=20)
        assert answer.status_code == 200, answer.text
        assert server.get("/health").status_code == 200
        created.add(answer.json()["created"])
        return max(created) - min(created) > 3600

    wait_for(has_jumped)
    count = len(created)
    wait_for(lambda: has_jumped() and len(created) > count)
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def test_a_gone_client_frees_its_request(run_server) -> None:
    server = run_server("demo")
    Stream(server).close()
    aborted = 'hotshoe_sequences_finished_total{model="demo",reason="abort"} 1'
    wait_for(lambda: aborted in server.get("/metrics").text)
    assert load_of(server)["kv_cache_usage"] == 0
    assert load_of(server)["server_load"] == 0


def test_a_full_queue_answers_429(run_server) -> None:
    server = run_server("demo", "--max-num-seqs", "1", "--max-num-queued-reqs", "1")
    stream = Stream(server)
    [engine] = children(server.process.pid)
    ask = partial(server.post, "/v1/completions", prompt="x", max_tokens=1)
    # It stands still so that the stream does not end before the others come.
    with ThreadPoolExecutor(6) as pool, stopped(engine):
        asked = [pool.submit(ask) for _ in range(6)]
        next(as_completed(asked))  # one that was refused: no other gets its turn yet
        stream.close()
    answers = [one.result() for one in asked]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused, answers
    assert int(refused[0].headers["retry-after"]) >= 1
    assert refused[0].json()["error"]["code"] == "queue_full"


@pytest.mark.slow
def test_a_killed_engine_fails_requests_and_is_replaced(run_server) -> None:
    server = run_server("demo", "--engine-restarts", "1")
    stream = Stream(server)
    [engine] = children(server.process.pid)
    subprocess.run(["kill", "-9", str(engine)], check=True)
    text = stream.read()
    assert '"code":"engine_dead"' in text
    server.wait("/ready", 200)
    answer = server.post("/v1/completions", prompt="x", max_tokens=2)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("number", "stall_s"),
    [(signal.SIGKILL, "60"), pytest.param(signal.SIGSTOP, "3", marks=pytest.mark.slow)],
)
def test_an_engine_that_is_gone_or_stuck_turns_health_red(
    run_server, number: int, stall_s: str
) -> None:
    server = run_server(*NULL, "--engine-restarts", "0", "--engine-stall-timeout-s", stall_s)
    [engine] = children(server.process.pid)
    os.kill(engine, number)
    server.wait("/health", 503)
    wait_for(lambda: not is_running(engine))
    said = "no other one is started (--engine-restarts 0)"
    wait_for(lambda: said in server.log.read_text())
    server.wait("/live", 503)
    assert "restart the server" in server.get("/live").json()["error"]["message"]
    answer = server.post("/v1/completions", prompt="x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
    assert server.stop() == 0


@pytest.mark.slow
def test_a_stopped_engine_fails_requests_and_is_replaced(run_server) -> None:
    server = run_server("demo", "--engine-stall-timeout-s", "3", "--engine-restarts", "5")
    stream = Stream(server)
    [engine] = children(server.process.pid)
    os.kill(engine, signal.SIGSTOP)
    assert '"code":"engine_dead"' in stream.read()
    server.wait("/health", 200)
    assert not is_running(engine)
    answer = server.post("/v1/completions", prompt="x", max_tokens=2)
    assert answer.status_code == 200


def test_a_killed_server_leaves_nothing(run_server, leftovers) -> None:
    server = run_server(*NULL)
    engines = children(server.process.pid)
    assert list(leftovers.glob("*/engine.sock"))
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not any(map(is_running, engines)))
    assert list(leftovers.iterdir()) == []


def test_the_engine_in_the_same_process(run_server) -> None:
    server = run_server(*NULL, "--no-engine-process")
    assert children(server.process.pid) == []
    answer = server.post("/v1/completions", prompt=[1], max_tokens=2)
    assert answer.status_code == 200
    assert server.stop() == 0


@pytest.mark.slow
def test_a_disk_that_is_full_of_logs() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # as it cannot say which one it has
    words = (*NULL, "--log-format", "json", "--access-log")
    server = RunningServer(Path("/dev/full"), *words, port=port)
    body = {"prompt": [1], "max_tokens": 2}
    assert server.post("/v1/completions", **body).status_code == 200
    assert server.get("/nothing").status_code == 404
    assert server.stop() == 0


def test_a_certificate_is_read_when_it_has_been_checked(tmp_path) -> None:
    certificate, key, _ = self_signed(tmp_path, "ours")
    config = ServerConfig(ssl_certfile=certificate, ssl_keyfile=key)
    server = Server(config, None, {}, lambda: None, print, start=Start(answers_early=False))
    trust = ssl.create_default_context(cafile=certificate)
    trust.check_hostname = False

    async def connect(listener: socket.socket) -> None:
        async with server._listen(answer_while_loading, listener):
            Path(certificate).write_text("torn")
            server._takes.set()
            connecting = asyncio.open_connection(*listener.getsockname(), ssl=trust)
            _, writer = await asyncio.wait_for(connecting, 60)
            writer.close()
            await writer.wait_closed()

    with open_port("127.0.0.1", 0) as listener:
        asyncio.run(connect(listener))


def test_an_access_log_has_a_line_for_each_request(run_server) -> None:
    running = run_server(*NULL, "--access-log")
    running.get("/v1/models")
    assert running.stop() == 0
    assert '"GET /v1/models HTTP/1.1" 200' in running.log.read_text()


@pytest.mark.parametrize("processes", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_in_json_every_line_is_an_object(run_server, processes: str) -> None:
    words = ("--log-format", "json", "--access-log", "--host", "0.0.0.0")
    server = run_server(*NULL, "--api-processes", processes, *words)
    server.post("/v1/completions", prompt=[1], max_tokens=2)
    if processes == "2":
        os.kill(
            [pid for pid in children(server.process.pid) if "api_process" in command_of(pid)][1], 9
        )
        wait_for(lambda: "starting another one" in server.log.read_text())
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    said = [line["message"] for line in lines if line["logger"] == "hotshoe.serve"]
    assert said[0].startswith("listening on ") and "ready: demo" in said
    assert "shutting down; requests that run: 0" in said
    levels = {line["message"].partition(" ")[0]: line["level"] for line in lines}
    assert levels["WARNING:"] == "warning" and levels["ready:"] == "info"
    assert any('"POST /v1/completions HTTP/1.1" 200' in line["message"] for line in lines)
    assert any(line["message"] == "request ended" for line in lines)
    replaced = [line["level"] for line in lines if "starting another" in line["message"]]
    assert replaced == (["warning"] if processes == "2" else [])
