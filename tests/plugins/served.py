"""`hotshoe serve` as a process of its own, for tests of what talks to it. Not a test module."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 240
STOP_S = 120


@dataclass(frozen=True)
class Served:
    """A server that is ready."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def get(self, path: str, **headers: str) -> str:
        """Return the body at a path."""
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.read().decode()


@contextmanager
def serve(*words: str, python: str = sys.executable) -> Iterator[Served]:
    """Start a server on a free port, wait until it is ready, and end it as a user would."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [python, "-m", "hotshoe.cli", "serve", *words, "--port", "0"]
        with log.open("w") as file:
            process = subprocess.Popen(command, stderr=file, text=True)
        try:
            served = Served(_wait_for_url(log, process), process, log)
            _wait_until_ready(served)
            yield served
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _wait_for_url(log: Path, process: subprocess.Popen[str]) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r'listening on (\S+?)["\n]', log.read_text()):  # be it in JSON
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"no server: {log.read_text()}")


def _wait_until_ready(served: Served) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and served.process.poll() is None:
        try:
            served.get("/ready")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"not ready: {served.log.read_text()}")
