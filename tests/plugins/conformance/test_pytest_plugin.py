"""The kit as a pytest plugin: a marker and a call are a platform's test module."""

import subprocess
import sys
from pathlib import Path

MODULE = """
import pytest


@pytest.mark.conformance({platform!r})
def test_conformance(conformance_check) -> None:
    conformance_check()
"""


#: What else pytest finds installed, and imports for seconds.
OTHERS = (
    "schemathesis",
    "hypothesispytest",
    "langsmith_plugin",
    "anyio",
    "xdist",
    "xdist.looponfail",
)


def pytest_of(tmp_path: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_mine.py").write_text(text)
    # Rewriting the plain asserts of all plugins would take longer than the test.
    quick = ["--assert=plain", "-pno:cacheprovider", *(f"-pno:{name}" for name in OTHERS), "-q"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *quick, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_module_of_three_lines(tmp_path: Path) -> None:
    words = ("-k", "declarations or rms_norm", "--conformance-seed", "7")
    done = pytest_of(tmp_path, MODULE.format(platform="cpu"), *words)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_what_is_wrong_is_in_the_failure(tmp_path: Path) -> None:
    text = MODULE.format(platform="toaster")
    unmarked = text.replace("@pytest.mark", "# ").replace("test_conf", "test_unmarked")
    done = pytest_of(tmp_path, text + unmarked, "-k", "declarations")
    assert done.returncode == 1
    assert "unknown platform 'toaster'" in done.stdout
    assert "conformance_check()" not in done.stdout, "a trace would hide the reason"
    assert "mark the test with @pytest.mark.conformance" in done.stdout
