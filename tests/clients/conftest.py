"""The server that clients talk to. `make clients` runs these tests in an environment of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

START_S = 240
#: Without what a module tests, as in `make test`, it has no tests.
SUBJECTS = {"test_clients.py": "llama_index", "test_evaluators.py": "lm_eval"}
collect_ignore = [name for name, of in SUBJECTS.items() if importlib.util.find_spec(of) is None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hotshoe", default="hotshoe", help="the command that starts the server")


@pytest.fixture(scope="session")
def url(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the bundled model, in Ollama's form as well, and return the server's address."""
    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--ollama", "--port", "0", "--allowed-origins", "*")  # for pages of any origin
    command = [pytestconfig.getoption("--hotshoe"), "serve", "demo", *flags]
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        yield _address(log, process)
    finally:
        process.terminate()
        process.wait(60)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"listening on (\S+)", log.read_text()):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{found[1]}/ready", timeout=10).close()
                return found[1]
        time.sleep(0.1)
    raise AssertionError(f"no server: {log.read_text()}")
