"""The path of a token: files that one request or step runs through, and lines that these have.

A reader who follows a token opens these files. The ceilings are counts of 2026-11-28, lines rounded
up to fifty; lower them when a path gets shorter. The goals were 25 files and 5,000 lines
for a streamed chat request over HTTP, and 16 files and 3,200 lines for a recorded decode step;
decision 190 says what bounds them. Each path is traced in a process of its own, as a profile hook
slows down all that it sees.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRACING = Path(__file__).parent / "tracing.py"
#: Files of every path: a trace without them has seen nothing.
ALWAYS = {"core/hotshoe/scheduler/scheduler.py", "core/hotshoe/runner/runner.py"}
PROMPTS = "core/hotshoe/layers/attention.py"

LLM = "core/hotshoe/engine/api/llm.py"


def path_of(name: str) -> list[str]:
    command = [sys.executable, "-P", str(TRACING), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    files: list[str] = json.loads(done.stdout.splitlines()[-1])
    return files


@pytest.mark.parametrize(
    ("name", "max_files", "max_lines", "seen", "unseen"),
    [
        ("decode", 17, 3_350, "platforms/cpu/hotshoe_cpu/graph.py", PROMPTS),
        (
            "chat",
            70,
            12_550,
            "plugins/server/hotshoe_server/sse.py",
            "core/hotshoe/engine/api/llm.py",
        ),
    ],
)
def test_the_path_does_not_grow(
    name: str, max_files: int, max_lines: int, seen: str, unseen: str, root: Path
) -> None:
    files = path_of(name)
    lines = sum((root / file).read_text(encoding="utf-8").count("\n") for file in files)
    assert {seen, *ALWAYS} <= set(files)
    assert unseen not in files
    assert len(files) <= max_files, files
    assert lines <= max_lines
