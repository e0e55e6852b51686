"""What `make demo` runs after it has installed everything: each of its commands ends well."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "demo.sh"


@pytest.mark.slow  # starts an engine for each; `tests/e2e/test_demo.py` asks the same in one
def test_every_command_of_the_demo_ends_well() -> None:
    command = ["env", f"BIN={Path(sys.executable).parent}", "bash", str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for said in ("23 + 45 = 68", '{"name": "Peter", "city": "Vienna"}', '"city": "Paris"'):
        assert said in done.stdout
