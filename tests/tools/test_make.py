"""`make wheels`: who builds a commit again gets the same bytes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_wheels_have_the_time_of_their_commit() -> None:
    assert "\nwheels: export SOURCE_DATE_EPOCH" in (ROOT / "Makefile").read_text()


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
