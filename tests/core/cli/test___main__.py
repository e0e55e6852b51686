"""Ctrl-C before the first line of a command, and after its last; streams that cannot be used."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

#: Undoes what a shell does to its background jobs, whose children ignore Ctrl-C.
HEEDING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
EARLY = """
import os, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "hotshoe.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""
LATE = """
import atexit, os, sys
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
"""
RUN = "from hotshoe.cli.__main__ import run; sys.argv[1:] = ['--version']; sys.exit(run())"


def run(prelude: str, word: str = "--version") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", HEEDING + prelude + RUN.replace("--version", word)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def test_an_interrupt_during_imports_is_silent() -> None:
    done = run(EARLY)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(("word", "code"), [("serve", 0), ("generate", -signal.SIGTERM)])
def test_a_service_that_is_ended_during_imports_has_ended_well(word: str, code: int) -> None:
    done = run(EARLY.replace("SIGINT", "SIGTERM"), word)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_an_interrupt_at_the_end_changes_nothing() -> None:
    done = run(LATE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("hotshoe ")


def test_background_jobs_go_on_ignoring_it() -> None:
    done = run("signal.signal(signal.SIGINT, signal.SIG_IGN)" + EARLY)
    assert done.returncode == 0


def test_a_keeper_runs_what_it_can() -> None:
    forked = "import sys; from hotshoe.cli.keeper import client; client.run_forked = lambda words: "
    assert run(f"{forked} len(words) + 6\n").returncode == 7
    assert run(f"{forked} None\n").stdout.startswith("hotshoe ")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which HOTSHOE stands for the program."""
    line = line.replace("HOTSHOE", f"{sys.executable} -m hotshoe.cli")
    words = ["bash", "-c", line]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("word", ["--version", "platforms"])
def test_closed_streams_are_no_failure(word: str, closed: str) -> None:
    done = shell(f"HOTSHOE {word} {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed == "2>&-")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("word", ["--version", "platforms --json"])
def test_a_full_disk_is_told_in_a_line(word: str) -> None:
    done = shell(f"HOTSHOE {word} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == (f"hotshoe: error: cannot write any more: {os.strerror(errno.ENOSPC)}\n")


def test_an_encoding_that_lacks_a_character_is_no_failure(model_dir: Path) -> None:
    prompts = "-p ü ü"  # several are printed again, in front of what continues them
    done = shell(
        "PYTHONIOENCODING=ascii PYTHONUTF8=1 HOTSHOE "
        f"generate {model_dir} --platform null -q {prompts} --max-tokens 1"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "[1] ?" in done.stdout
