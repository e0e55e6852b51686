"""On the null platform, engine and command line run whole without torch and numpy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None  # importing either now raises ImportError
from hotshoe.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def hotshoe(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("overlapped", ["--async-scheduling", "--no-async-scheduling"])
def test_generate(model_dir: Path, overlapped: str) -> None:
    done = hotshoe(
        *("generate", str(model_dir), "--platform", "null", overlapped, "--json", "-q"),
        *("-p", "A", "Hello", "--max-tokens", "4"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    texts = [r["outputs"][0]["text"] for r in json.loads(done.stdout)["requests"]]
    assert texts == ["BCDE", "pqrs"]


@pytest.mark.parametrize("command", ["explain", "bench latency", "bench throughput"])
def test_other_commands(model_dir: Path, command: str) -> None:
    done = hotshoe(*command.split(), str(model_dir), "--platform", "null")
    assert done.returncode == 0, done.stderr
    assert done.stdout
