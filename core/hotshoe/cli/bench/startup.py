"""`hotshoe bench startup`: from the start of a process to its first token.

Every iteration is a new process that runs `hotshoe generate` as a user would. Where `hotshoe
preload` forks it, the peak of memory is that of the process which stands for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from hotshoe.cli.bench.workload import add_iteration_flags, check_flags, iterate, report
from hotshoe.cli.options import add_engine_flags, engine_config
from hotshoe.errors import ConfigError, EngineError


class Startup:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_iteration_flags(parser)
        add_engine_flags(parser)

    def run(self, args: Namespace) -> int:
        check_flags(args)
        config = engine_config(args)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump(asdict(config), file)  # JSON is YAML
            file.flush()
            iterations = iterate(args, lambda: measure(command_line(file.name)))
        report("startup", args, asdict(config), iterations)
        return 0


def command_line(config_file: str) -> list[str]:
    """Return the command that a user would type for one token."""
    words = [sys.executable, "-m", "hotshoe.cli", "generate", "--config", config_file]
    return [*words, "--max-tokens", "1", "--json", "--quiet", "-p", "Hello"]


def measure(command: Sequence[str]) -> Mapping[str, float]:
    """Run one process; its clock stops at the line that holds the first token.

    Raises:
        ConfigError: It refused its options; its own message is passed on.
        EngineError: It failed in another way.
    """
    begin = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+", errors="replace") as said,  # a full pipe would stop it
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - begin
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        message = said.read()
    if process.returncode != 0:
        kind = ConfigError if process.returncode == 2 else EngineError
        raise kind(message.strip().removeprefix("hotshoe: error: ") or "no message")
    document = json.loads(line)
    phases = {f"{name} (s)": value for name, value in document["startup_s"].items()}
    inside = sum(phases.values()) + document["generate_s"]
    return {
        "first_token_s": seconds,
        "peak_rss_mib": usage.ru_maxrss / 1024,
        "interpreter and imports (s)": seconds - inside,
        **phases,
        "first step (s)": document["generate_s"],
    }
