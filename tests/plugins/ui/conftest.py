"""The page's files behind a server that answers from a script, and one browser for all tests."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from tests.plugins.ui.browser import BINARY, Browser

from hotshoe_ui.page import public_files

ORIGIN_KEY = "sesame-4242"


@dataclass
class FakeServer:
    """What the page asks for, answered by hand."""

    metrics: str = ""
    info: dict = field(default_factory=dict)
    events: list[dict] = field(default_factory=list)
    key: str | None = None
    pause_s: float = 0.0
    seen: list[dict] = field(default_factory=list)
    gone: int = 0
    url: str = ""

    def refusal(self, request: web.Request) -> web.Response | None:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "give a key"}}, status=401)
        return None

    async def list_models(self, request: web.Request) -> web.Response:
        found = {"data": [{"id": "demo"}, {"id": "other"}]}
        return self.refusal(request) or web.json_response(found)

    async def show_metrics(self, request: web.Request) -> web.Response:
        if not self.metrics:
            raise web.HTTPNotFound
        return self.refusal(request) or web.Response(text=self.metrics)

    async def show_info(self, request: web.Request) -> web.Response:
        return self.refusal(request) or web.json_response(self.info)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(await request.json())
        if refused := self.refusal(request):
            return refused
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            for event in self.events:
                data = event if isinstance(event, str) else json.dumps(event)
                await response.write(b"data: " + data.encode() + b"\n\n")
                await asyncio.sleep(self.pause_s)
        except (asyncio.CancelledError, ConnectionResetError):
            self.gone += 1
            raise
        return response

    async def serve(self, started: threading.Event) -> None:
        self.stopping = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        app = web.Application()
        for file in public_files():
            app.router.add_get(file.path, _as_aiohttp(file))
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_get("/metrics", self.show_metrics)
        app.router.add_get("/server_info", self.show_info)
        app.router.add_post("/v1/chat/completions", self.chat)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await self.stopping.wait()
        await runner.cleanup()


def _as_aiohttp(file):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=file.body, headers=file.headers)

    return answer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake, started = FakeServer(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(fake.serve(started)))
    thread.start()
    assert started.wait(60)
    yield fake
    fake.loop.call_soon_threadsafe(fake.stopping.set)
    thread.join(60)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if BINARY is None:
        pytest.skip("Chromium is not installed")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(chromium: Browser, server: FakeServer) -> Iterator[Browser]:
    """The browser, with nothing to complain about before and after, while the server is there."""
    chromium.complaints.clear()
    yield chromium
    chromium.open("about:blank")
    assert chromium.complaints == []
