"""The plugin offers its commands and imports no HTTP library for it."""

import subprocess
import sys

CODE = """
import sys
from hotshoe.cli.main import main
main({words})
assert "aiohttp" not in sys.modules, "aiohttp was imported"
assert "torch" not in sys.modules, "torch was imported"
"""


def run(words: list[str]) -> str:
    code = CODE.format(words=words)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout


def test_listed_in_the_group() -> None:
    text = run(["bench", "--help"])
    for name in ("serve", "agent", "compare", "latency"):
        assert f"bench {name}" in text


def test_unknown_commands_are_answered_from_the_same_list() -> None:
    command = [sys.executable, "-m", "hotshoe.cli", "bench", "server"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "bench serve" in ran.stderr
