"""A process of its own that computes what it is asked for, timed in seconds of one core.

The process prints `done` once it is ready and behind each answer. Time is what the kernel says that
its threads have computed, as it does not grow while others use the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class Child:
    """An engine in a process of its own.

    Args:
        command: Starts it.
        env: Its environment; None for this one.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(
            command, text=True, env=env, stderr=subprocess.DEVNULL, **pipes
        )
        self._wait()

    def seconds(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Return how long one core computes them."""
        before = self._computed()
        self._process.stdin.write(json.dumps([prompts, num_tokens]) + "\n")
        self._process.stdin.flush()
        self._wait()
        return self._computed() - before

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _wait(self) -> None:
        while (line := self._process.stdout.readline()) != "done\n":
            if not line:
                sys.exit(f"{self._process.args} ended; run it by hand to see why")

    def _computed(self) -> float:
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(each.read_text().split()[0]) for each in threads) / 1e9
