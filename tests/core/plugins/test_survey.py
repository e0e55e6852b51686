"""A plugin that ends its process, or holds it up, is named by everyone who lists plugins."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hotshoe.plugins import HOOK_API
from hotshoe.plugins import survey as module
from hotshoe.plugins.survey import Survey, _parted, survey

PLATFORM = f"""
from hotshoe.plugins import hookimpl
HOTSHOE_HOOK_API = {HOOK_API}
@hookimpl
def hotshoe_platforms():
    return {{"NAME": "NAME_device:Device"}}
"""
FAULT = "import ctypes, faulthandler; faulthandler.disable(); ctypes.string_at(0)\n"
EXIT = "import os; print('gone'); os._exit(3)\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install plugins for this process and its children, from their sources."""

    def install(**sources: str) -> None:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
            if not name.endswith("_device"):
                info = tmp_path / f"hotshoe_x_{name}-1.0.dist-info"
                info.mkdir()
                named = f"Metadata-Version: 2.1\nName: hotshoe-x-{name}\nVersion: 1.0\n"
                (info / "METADATA").write_text(named)
                (info / "entry_points.txt").write_text(f"[hotshoe]\n{name} = {name}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def hotshoe(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hotshoe.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_nobody_is_to_blame_here() -> None:
    assert survey(platforms=True) == Survey()


def test_each_is_named_with_how_it_ends_the_process(install) -> None:
    install(
        quits=EXIT,
        faults=FAULT,
        raises="1 / 0\n",
        leaves="raise SystemExit(4)\n",
        probed=PLATFORM.replace("NAME", "probed"),
        probed_device=EXIT,
    )
    found = survey(platforms=True)
    assert found.plugins == {
        "faults": "it ends the process, by SIGSEGV",
        "quits": "it ends the process, with exit code 3",
    }
    assert found.platforms == {"probed": "it ends the process, with exit code 3"}
    errors = {r.name: r.error for r in found.plugin_manager().records}
    assert errors["quits"] == "PluginError: it ends the process, with exit code 3"
    assert errors["raises"] == "ZeroDivisionError: division by zero"
    assert errors["leaves"] == "SystemExit: 4"
    assert errors["probed"] is None


def test_who_goes_first_ends_with_who_sent_it(install, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    source = "import os, time\nopen(NOTE, 'w').write(f'{os.getpid()} ')\ntime.sleep(600)\n"
    install(sleeps=source.replace("NOTE", repr(str(note))))
    command = [sys.executable, "-c", "from hotshoe.plugins.survey import survey; survey()"]
    with subprocess.Popen(command) as owner:
        limit = time.monotonic() + 60
        while not (note.exists() and note.read_text().endswith(" ")):
            assert time.monotonic() < limit and owner.poll() is None
            time.sleep(0.01)
        watcher = os.pidfd_open(int(note.read_text()))
        owner.kill()
        try:
            assert select.select([watcher], [], [], 60)[0]  # it has ended
        finally:
            os.close(watcher)


def test_one_that_never_returns(install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(sleeps="import time; time.sleep(600)\n")
    monkeypatch.setattr(module, "SURVEY_S", 3.0)
    assert survey().plugins == {"sleeps": "it takes longer than 3 s"}


def test_who_fails_only_where_its_hook_is_called_is_not_mistaken(install) -> None:
    install(hooked=PLATFORM.replace("return", "import os; os._exit(5); return"))
    assert survey(platforms=True) == Survey()


def test_those_who_list_survive(install) -> None:
    install(quits=EXIT, probed=PLATFORM.replace("NAME", "probed"), probed_device=FAULT)
    [row] = [
        row
        for row in json.loads(hotshoe("plugins", "--json").stdout)["plugins"]
        if row["plugin"] == "quits"
    ]
    assert row["error"] == "PluginError: it ends the process, with exit code 3"
    rows = {row["platform"]: row for row in json.loads(hotshoe("platforms", "--json").stdout)}
    assert rows["null"]["status"] == "available"
    assert rows["probed"]["remarks"] == "it ends the process, by SIGSEGV"
    done = hotshoe("doctor", "--json")
    assert done.returncode == 1, done.stderr
    wrong = {(f["topic"], f["name"]) for f in json.loads(done.stdout) if f["state"] == "wrong"}
    assert {("plugin", "quits"), ("platform", "probed")} <= wrong


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([""], [[], []]),
        (["a", "b", "", "c", "", "d"], [["a", "b"], ["c"], ["d"]]),
    ],
)
def test_words_are_cut_where_they_are_empty(words: Sequence[str], parts: list[list[str]]) -> None:
    assert [list(part) for part in _parted(words)] == parts


def test_nothing_stays_open() -> None:
    def open_ones() -> set[Path]:
        return set(Path("/proc/self/fd").iterdir())

    before = open_ones()
    survey()
    assert open_ones() == before
