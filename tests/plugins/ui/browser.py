"""Headless Chromium, driven over the DevTools protocol: open a page, run code in it, look at it.

Not a test module. Used by the tests of the page, from plain synchronous code.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

T = TypeVar("T")

BINARY = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-port=0"),
)
START_S = 60
STEP_S = 30


class Browser:
    """One browser with one page.

    Args:
        profile: An empty directory of its own.
    """

    def __init__(self, profile: Path) -> None:
        assert BINARY is not None
        self._process = subprocess.Popen(
            [BINARY, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._count = 0
        #: What the page logged, threw, or was kept from doing.
        self.complaints: list[str] = []
        port = self._wait_for_port(profile / "DevToolsActivePort")
        self._await(self._connect(port))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._await(self._socket.close())
        self._await(self._session.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()
        self._process.terminate()
        self._process.wait(60)

    def open(self, url: str, *, width: int = 1280, height: int = 860, dark: bool = False) -> None:
        """Load a page in a window of this size and palette."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, code: str) -> Any:
        """Evaluate an expression in the page, await it, and return its value."""
        found = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = STEP_S) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, (condition, self.run("document.body.innerText"))
            time.sleep(0.03)

    def press(self, key: str, **more: Any) -> None:
        """Press and let go of a key."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37}
        event = {"key": key, "windowsVirtualKeyCode": codes[key], **more}
        if key == "Enter":
            event["text"] = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the window."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        return self._await(self._send(method, params))

    def _wait_for_port(self, file: Path) -> int:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if file.exists() and (lines := file.read_text().splitlines()):
                return int(lines[0])
            time.sleep(0.05)
        raise TimeoutError("Chromium did not start")

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(START_S)

    async def _connect(self, port: int) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as response:
            targets = await response.json(content_type=None)
        url = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
        self._socket = await self._session.ws_connect(url, max_msg_size=2**27)
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._replies.pop(event["id"]).set_result(event)
            else:
                self._complain(event["method"], event["params"])

    def _complain(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str([a.get("value") for a in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))

    async def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        reply = self._replies[self._count] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._count, "method": method, "params": params})
        answer = await reply
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]


Page = Callable[..., Browser]
