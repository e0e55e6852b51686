"""The kit in a process of its own: what does not come back is named, and it ends with its owner."""

import os
import re
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.plugins.conformance.test_command import NARROW

from hotshoe.cli.main import main
from hotshoe_conformance import apart

DEADLY = """
import os, sys
from hotshoe.slots import accept
from hotshoe_conformance import kit

def build(spec, facts):
    return lambda x, weight: os.abort()

original = kit.offered

def offered(platform, plugins, facts):
    found = original(platform, plugins, facts)
    candidate = kit.Candidate("rms_norm", "deadly", lambda s, f: accept(0), build)
    return {**found, "rms_norm": [candidate, *found["rms_norm"]]}

kit.offered = offered
"""


def test_a_kernel_that_takes_the_process_down_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(list(NARROW)) == 1
    out = capsys.readouterr().out
    assert "WRONG: the process was killed by SIGABRT" in out
    assert re.search(r"--slot rms_norm --candidate deadly --case \d+ --seed 1", out)


def test_a_kernel_that_never_comes_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hanging = DEADLY.replace("os.abort()", "__import__('time').sleep(3600)")
    assert hanging != DEADLY
    (tmp_path / "sitecustomize.py").write_text(hanging)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(apart, "TIMES", replace(apart.TIMES, silent_s=4.0, look_s=1.0))
    monkeypatch.setattr(apart, "SAY_EVERY_S", 1.0)
    assert main(list(NARROW)) == 1
    out, err = capsys.readouterr()
    assert "WRONG: one case did not end within 4 s" in out
    assert re.search(r"--slot rms_norm --candidate deadly --case \d+ --seed 1", out)
    assert re.search(r"\d s in one case: .*--candidate deadly", err)


#: Stands for a run of the kit: it starts something, names both processes, and does not end.
STUCK = """
import os, subprocess, time
from hotshoe.cli import main as cli
from hotshoe_conformance import apart

def run(words):
    started = subprocess.Popen(["sleep", "600"])
    os.write(2, f"{os.getpid()} {started.pid}\\n".encode())
    time.sleep(600)

cli.main = run
apart.main()
"""
OWNER = f"""
import sys
from hotshoe_conformance import apart
apart.COMMAND = (sys.executable, "-c", {STUCK!r})
apart.run_apart([])
"""


def test_it_ends_with_its_owner_and_takes_along_what_it_has_started() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stderr=subprocess.PIPE) as owner:
        assert owner.stderr is not None
        watchers = [os.pidfd_open(int(word)) for word in owner.stderr.readline().split()]
        assert len(watchers) == 2
        owner.kill()
        try:
            for watcher in watchers:
                assert select.select([watcher], [], [], 60)[0]  # it has ended
        finally:
            for watcher in watchers:
                os.close(watcher)
