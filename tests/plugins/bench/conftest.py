"""A server of known delays in a thread, speaking the two endpoints, and the command in-process."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from aiohttp import web

from hotshoe.cli.main import main


class Ran(NamedTuple):
    """What one command line left behind."""

    code: int
    out: str
    err: str


@dataclass
class FakeServer:
    """Answers after known delays, once `gather` requests have been open together. `fault` chooses
    what goes wrong with every `fault_every`th.
    """

    first_s: float = 0.0
    gap_s: float = 0.0
    gather: int = 0
    fault: str = ""
    fault_every: int = 1
    models: list[str] = field(default_factory=lambda: ["fake"])
    models_body: object = None
    models_status: int = 200
    key: str | None = None
    num_cached: int | None = None
    url: str = ""
    seen: list[dict] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    async def list_models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "no"}}, status=401)
        listed = {"data": [{"id": name} for name in self.models]}
        body = listed if self.models_body is None else self.models_body
        return web.json_response(body, status=self.models_status)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.seen.append(asked)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            while self.most_open < self.gather:
                await asyncio.sleep(0.01)
            faulty = len(self.seen) % self.fault_every == 0
            return await self.answer(request, asked, self.fault if faulty else "")
        finally:
            self.num_open -= 1

    async def answer(self, request: web.Request, asked: dict, fault: str) -> web.StreamResponse:
        if fault == "busy":
            body = {"error": {"message": "too many\nrequests", "code": 429}}
            return web.json_response(body, status=429)
        if fault == "crash":
            return web.Response(status=500, text="Internal  Server\nError")
        if fault == "sleep":
            await asyncio.sleep(60)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        count = asked["max_tokens"] - (fault == "short")
        await asyncio.sleep(self.first_s)
        for number in range(0 if fault == "empty" else count):
            if number:
                await asyncio.sleep(self.gap_s)
            if fault == "cut" and number == 2:
                request.transport.close()
                return response
            if fault == "error" and number == 2:
                await self.event(response, {"error": {"message": "the engine has stopped"}})
                return response
            await self.event(response, self.token(asked, "x", None))
        if fault != "unfinished":
            await self.event(response, self.token(asked, "", "length"))
        usage = {"prompt_tokens": 7, "completion_tokens": 0 if fault == "empty" else count}
        if self.num_cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.num_cached}
        await self.event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    def token(self, asked: dict, text: str, reason: str | None) -> dict:
        if "messages" in asked:
            return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}
        return {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}

    async def event(self, response: web.StreamResponse, value: dict) -> None:
        await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    async def serve(self, started: threading.Event) -> None:
        self.stopping = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        app = web.Application()
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/chat/completions", self.complete)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await self.stopping.wait()
        await runner.cleanup()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake, started = FakeServer(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(fake.serve(started)))
    thread.start()
    assert started.wait(60)
    yield fake
    fake.loop.call_soon_threadsafe(fake.stopping.set)
    thread.join(60)


@pytest.fixture
def bench(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`hotshoe bench serve` against the fake server, with a small workload unless told."""

    def run(*words: object) -> Ran:
        sizes = ["--num-prompts", "8", "--num-warmups", "0"]
        sizes += [] if "--conversations" in words else ["--input-len", "5"]
        address = [] if "--base-url" in words else ["--base-url", server.url]
        capsys.readouterr()
        code = main(["bench", "serve", *address, *sizes, "--output-len", "4", *map(str, words)])
        return Ran(code, *capsys.readouterr())

    return run
