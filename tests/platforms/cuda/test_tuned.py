"""Every configuration that is shipped compiles for the GPU it was tuned on, and fits it.

The compiler runs in a process of its own, since this one may interpret kernels instead.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotshoe_cuda.linear import Linear
from hotshoe_cuda.targets import TARGETS
from hotshoe_triton import tuned
from hotshoe_triton.device import ARCHS

FILES = {tuned.path_of(Linear.folder, target.facts): target.facts.arch for target in TARGETS}


def compiled(path: Path, part: str) -> list[dict[str, object]]:
    """Compile the entries whose key contains `part`."""
    command = [sys.executable, "-m", "hotshoe_triton.matrix", "--json", "--tuned", str(path)]
    command += ["--linear", "hotshoe_cuda.linear"]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [*command, "--arch", FILES[path], "--case", part],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_file_is_that_of_a_known_part() -> None:
    assert set(Linear.folder.glob("*.json")) <= set(FILES)


@pytest.mark.parametrize(
    "part", ["14336/1", "4096x4096/8", pytest.param("", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("path", sorted(Linear.folder.glob("*.json")), ids=lambda path: path.stem)
def test_what_is_shipped_compiles(path: Path, part: str) -> None:
    kernels = {k for k, e in tuned.read(path).items() if tuned.config_of(e).is_ours and part in k}
    found = compiled(path, part)
    assert {row["case"].removeprefix("tuned ") for row in found} == kernels
    assert all(row["shared_bytes"] <= ARCHS[FILES[path]].shared_bytes for row in found)
    assert all(row["registers"] and row["spilled_bytes"] <= 64 for row in found)
