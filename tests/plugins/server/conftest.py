"""An engine that says what a test wants, behind the real application; and real servers."""

import asyncio
import contextlib
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.client import EngineInfo, EngineStats
from hotshoe.errors import CheckpointError, EngineDeadError, RequestError
from hotshoe.platform import DeviceFacts
from hotshoe.plugins import PluginManager
from hotshoe.text.output_processor import OutputProcessor
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.types import (
    EmbedsPrompt,
    FinishReason,
    Pooling,
    PoolingParams,
    SamplingParams,
    TokenLogprobs,
    TokenOutput,
)
from hotshoe_demo import MODEL
from hotshoe_server.app import create_app
from hotshoe_server.config import ServerConfig
from hotshoe_server.extensions import Parts
from hotshoe_server.fleet import make_state

MAX_MODEL_LEN = 512
KEY = "a-key-for-tests"


class Gate:
    """Lets through as many tokens as it is told to."""

    def __init__(self) -> None:
        self._tokens = asyncio.Semaphore(0)

    def allow(self, count: int) -> None:
        for _ in range(count):
            self._tokens.release()

    async def wait(self) -> None:
        await self._tokens.acquire()


class ScriptedEngine:
    """See `hotshoe.engine.client.EngineClient`: answers every prompt with `reply`, token by token.

    Attributes:
        reply: What is said; past its end come end-of-sequence tokens.
        error: Raised instead, when set.
        refusal: Raised when a request comes to be run.
        fail_after: Number of tokens after which the sequence ends with an error.
        num_cached: Tokens found in the prefix cache, by sequence.
        gate: When given, every token waits for it.
        requests: What was asked, in order.
        unwanted: Ids of requests that somebody wants to end.
        aborted: Ids of requests that were left before their end.
        loaded: Directories of adapters by name.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.config = EngineConfig(max_model_len=MAX_MODEL_LEN, block_size=16)
        facts = DeviceFacts("null", "cpu", "nothing", "none", 1 << 30, 1, frozenset({"a", "b"}))
        tasks = {"tasks": ("generate", "embed"), "pooling": Pooling("last"), "vector_size": 2**20}
        self.info = EngineInfo(self.config, "/model", 8192, 64, (8183,), facts, **tasks)
        self.reply = "Hello there"
        self.error: Exception | None = None
        self.refusal: Exception | None = None
        self.fail_after: int | None = None
        self.failure = "logits are not finite"
        self.deadline_after: int | None = None
        self.gate: Gate | None = None
        self.is_paused = self.is_sleeping = self.is_over = False
        self.num_cached = [0]
        self.num_restarts = 0
        self.requests: list[SimpleNamespace] = []
        self.unwanted: set[str] = set()
        self.aborted: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.loaded: dict[str, str] = {}

    async def generate(
        self,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        priority: int = 0,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        self.requests.append(
            SimpleNamespace(
                prompt=prompt, params=params, id=request_id, tenant=tenant, timeout_s=timeout_s
            )
        )
        self.check_queue()
        if self.refusal is not None:
            raise self.refusal
        if isinstance(params, PoolingParams):
            yield self._pooled(request_id, list(prompt.token_ids), params)
            return
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(params, name) or 0) > self.config.max_logprobs:
                raise RequestError(f"{name} is too large", name)
        outputs = OutputProcessor(self.tokenizer)
        children = [f"{request_id}#{i}" for i in range(params.n)] if params.n > 1 else [request_id]
        ids = [0] * len(prompt.embeds) if isinstance(prompt, EmbedsPrompt) else prompt.token_ids
        outputs.add(request_id, None, list(ids), params, children)
        tokens = [] if self.tokenizer is None else self.tokenizer.encode(self.reply, False)
        finished = False
        try:
            for step in range(10_000):
                await self._turn(request_id)
                token = tokens[step] if step < len(tokens) else 8183
                batch = [self._output(child, token, step, params) for child in children]
                if request_id in self.unwanted:
                    batch = [
                        TokenOutput(child, [], finish_reason=FinishReason.ABORT)
                        for child in children
                    ]
                for output, count in zip(batch, self.num_cached, strict=False):
                    output.num_cached_tokens = count
                updates, _ = outputs.process(batch)
                for update in updates:
                    finished = update.finished
                    yield update
                if finished or not updates:
                    return
        finally:
            if not finished:
                self.aborted.append(request_id)

    async def _turn(self, request_id: str) -> None:
        """Wait for the next step, or until nobody wants it any more."""
        if self.gate is None:
            await asyncio.sleep(0)
            return
        while request_id not in self.unwanted:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await self.gate.wait()
                return

    def _pooled(self, request_id: str, ids: list[int], params: PoolingParams) -> Any:
        """Return an update with a vector of the first tokens' ids."""
        outputs = OutputProcessor(self.tokenizer)
        outputs.add(request_id, None, ids, SamplingParams(max_tokens=1))
        values: list[float] = [float(i) for i in ids[: params.dimensions]]
        if params.normalize:
            padded = [*values, 0.0, 0.0, 0.0][:4]
            values = [value / math.hypot(*padded) for value in padded]
        vector = struct.pack(f"<{len(values)}f", *values)
        output = TokenOutput(request_id, [], finish_reason=FinishReason.STOP, pooled=vector)
        if self.fail_after is not None:
            output = TokenOutput(
                request_id, [], finish_reason=FinishReason.ERROR, error="not finite"
            )
        [update], _ = outputs.process([output])
        return update

    def _output(self, child: str, token: int, step: int, params: SamplingParams) -> TokenOutput:
        output = TokenOutput(child, [token])
        if params.logprobs is not None:
            others = tuple(range(100, 100 + params.logprobs))
            values = (-0.5, *(-1.0 - i for i in range(params.logprobs)))
            output.logprobs = [TokenLogprobs((token, *others), values, 1)]
        if params.prompt_logprobs is not None and step == 0:
            output.prompt_logprobs = [None, TokenLogprobs((token,), (-0.25,), 1)]
        if token == 8183:
            output.finish_reason = FinishReason.STOP
        elif params.max_tokens is not None and step + 1 >= params.max_tokens:
            output.finish_reason = FinishReason.LENGTH
        if step == self.fail_after:
            output.finish_reason, output.error = FinishReason.ERROR, self.failure
        if step == self.deadline_after:
            output.finish_reason, output.error = FinishReason.ABORT, "deadline"
        return output

    def check_queue(self) -> None:
        if self.error is not None:
            raise self.error

    async def check_health(self) -> None:
        if isinstance(self.error, EngineDeadError):
            raise self.error

    async def stats(self) -> EngineStats:
        return EngineStats(num_running=1, num_waiting=2, num_blocks=64, num_used_blocks=16)

    async def abort(self, request_ids: Any) -> None:
        self.calls.append(("abort", list(request_ids)))

    async def abort_everywhere(self, request_ids: Any = None) -> None:
        self.calls.append(("abort_everywhere", request_ids))
        self.unwanted.update([request_ids] if isinstance(request_ids, str) else request_ids or ())

    async def pause(self, mode: str = "abort", clear_cache: bool = True) -> None:
        self.calls.append(("pause", mode, clear_cache))
        self.is_paused = True

    async def resume(self) -> None:
        self.calls.append(("resume",))
        self.is_paused = False

    async def sleep(self, level: int = 1, mode: str = "keep") -> None:
        self.is_sleeping = True
        self.calls.append(("sleep", level, mode))

    async def update_weights(self, weights: str) -> None:
        self.calls.append(("update_weights", weights))
        if weights == "/none":
            raise CheckpointError("/none is missing")

    async def load_adapter(self, name: str, path: str) -> None:
        await asyncio.sleep(0)
        if path == "/none":
            raise CheckpointError("/none is missing")
        self.loaded[name] = path

    async def unload_adapter(self, name: str) -> None:
        if name not in self.loaded:
            raise RequestError(f"no adapter {name!r} is loaded", "adapter")
        del self.loaded[name]

    async def adapters(self) -> dict[str, str]:
        return self.loaded

    async def wake_up(self, tags: Any = None) -> None:
        self.is_sleeping = False
        self.calls.append(("wake_up", tags))

    async def reset_prefix_cache(self, reset_running: bool = False) -> bool:
        self.calls.append(("reset_prefix_cache", reset_running))
        return reset_running

    def close(self) -> None:
        self.calls.append(("close",))


class Http:
    """A client of an application in this process, synchronous for the tests' sake."""

    def __init__(self, app: Any, host: str = "127.0.0.1:8000", **headers: str) -> None:
        self.app = app
        self._headers = {"host": host, **headers}

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self.send(method, path, **options))

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
            headers = {**self._headers, **options.pop("headers", {})}
            return await http.request(method, path, headers=headers, **options)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self("POST", path, json=body)

    def get(self, path: str) -> httpx.Response:
        return self("GET", path)

    def events(self, path: str, **body: Any) -> list[Any]:
        """Return the JSON of a stream's events, without the end mark."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = response.text.split("\n\n")
        assert blocks.pop() == ""
        data = [block.rpartition("data: ")[2] for block in blocks]
        return [json.loads(text) for text in data if text != "[DONE]"]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(MODEL)


@pytest.fixture(scope="session")
def plugins() -> PluginManager:
    return PluginManager()


@pytest.fixture
def gate(engine: "ScriptedEngine") -> Gate:
    engine.gate = Gate()
    return engine.gate


@pytest.fixture
def engine(tokenizer: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


@pytest.fixture
def open_http(engine: ScriptedEngine, plugins: PluginManager) -> Callable[..., Http]:
    """Build a server over the scripted engine; options as for ServerConfig."""

    def build(parts: Sequence[Parts] = (), headers: Any = None, **options: Any) -> Http:
        state = make_state(ServerConfig(**options), engine, plugins)
        named = {f"extension {i}": part for i, part in enumerate(parts)}
        http = Http(create_app(state, named), **(headers or {}))
        http.state = state
        return http

    return build


@pytest.fixture
def http(open_http: Callable[..., Http]) -> Http:
    return open_http()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process stand still, all of it, which is later than the signal."""
    os.kill(pid, signal.SIGSTOP)
    limit = time.monotonic() + 60
    try:
        while any(_state(task) != "T" for task in Path(f"/proc/{pid}/task").iterdir()):
            assert time.monotonic() < limit, "it does not stop"
            time.sleep(0.01)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended nevertheless
            os.kill(pid, signal.SIGCONT)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class RunningServer:
    """A `hotshoe serve` process, on a port that the system has chosen.

    Clients of it verify nothing (`verify=False`): to read all certificates of the system takes each
    of them 25 ms.

    Args:
        log: Where it writes.
        arguments: For `serve`.
        ready: Wait until it is.
        port: One that the test has chosen.
    """

    def __init__(self, log: Path, *arguments: str, ready: bool = True, port: int = 0) -> None:
        self.key = KEY
        self.log = log
        words = [sys.executable, "-m", "hotshoe.cli", "serve", *arguments, "--port", str(port)]
        with log.open("wb") as file:
            # In a session of its own, as a service manager would start it.
            self.process = subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True)
        self._scheme, self._port = "http", port
        if ready:
            self.wait("/ready")

    @property
    def url(self) -> str:
        """Where it listens; waits until it says so."""
        limit = time.monotonic() + 120
        while not self._port:
            ended = self.process.poll() is not None  # asked first: then it has said all
            text = self.log.read_text()
            assert not ended and time.monotonic() < limit, text
            if found := re.search(r'listening on (https?)://\S+:(\d+)["\n]', text):
                self._scheme, self._port = found[1], int(found[2])
            else:
                time.sleep(0.02)
        return f"{self._scheme}://127.0.0.1:{self._port}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, verify=False)

    def post(self, path: str, **body: object) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, verify=False)

    def wait(self, path: str, status: int = 200, timeout_s: float = 120) -> None:
        """Wait until a path answers so."""
        limit = time.monotonic() + timeout_s
        while time.monotonic() < limit:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(httpx.TransportError):
                if self.get(path).status_code == status:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{path} never answered {status}: {self.log.read_text()}")

    def stop(self) -> int:
        """Ask it to end; return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(120)


@pytest.fixture(scope="module")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of the bundled model, with a key."""
    folder = tmp_path_factory.mktemp("server")
    keys = folder / "keys"
    keys.write_text(f"{KEY}\n")
    running = RunningServer(folder / "log", "demo", "--api-key-file", str(keys))
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


@pytest.fixture
def leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give servers a folder for temporary files; returns it, to see what stays there."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # sockets want short paths
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def run_server(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Start servers that end with the test."""
    running: list[RunningServer] = []

    def run(*arguments: str, ready: bool = True) -> RunningServer:
        log = tmp_path / f"server-{len(running)}.log"
        running.append(RunningServer(log, *arguments, ready=ready))
        return running[-1]

    yield run
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
