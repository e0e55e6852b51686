"""`make wheels`: who builds a commit again gets the same bytes."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.conftest import left_out

ROOT = Path(__file__).parents[2]
REASONS = ("no accelerator", "Chromium is not installed", "Chromium is not installed")


def test_wheels_have_the_time_of_their_commit() -> None:
    assert "\nwheels: export SOURCE_DATE_EPOCH" in (ROOT / "Makefile").read_text()


def test_tests_without_a_browser_are_counted() -> None:
    skipped = [SimpleNamespace(longrepr=("conftest.py", 1, f"Skipped: {why}")) for why in REASONS]
    line = left_out(skipped)
    assert line is not None and line.startswith("2 browser tests") and "apt-get install" in line
    assert left_out(skipped[:1]) is None


@pytest.mark.slow
def test_two_builds_of_a_wheel_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    built = []
    for name in ("one", "another-folder"):
        copy = tmp_path / name
        shutil.copytree(ROOT / "plugins/ui", copy, copy_function=shutil.copyfile)
        monkeypatch.setenv("PYTHONHASHSEED", str(len(name)))
        command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", copy / "dist"]
        subprocess.run([*command, copy], capture_output=True, check=True, timeout=300)
        [wheel] = (copy / "dist").glob("*.whl")
        built.append(wheel.read_bytes())
    assert built[0] == built[1]
