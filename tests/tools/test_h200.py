"""The one call that proves the CUDA platform: parts that fail, hang, or are not here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import h200
import pytest
from tests.processes import is_running

TESTS = """
import os
import sys

import pytest

BEFORE = []

def test_fine():
    BEFORE.append(1)

@pytest.mark.parametrize("n", [1, 2])
def test_chain(n):
    try:
        raise RuntimeError("operation not permitted when stream is capturing")
    except RuntimeError as error:
        raise ValueError("the engine has stopped") from error

def test_after_others():
    print("said before", file=sys.stderr)
    assert not BEFORE, "another test was here"

@pytest.mark.skip(reason="no second GPU")
def test_two(): ...
"""

RECORDING = "def test_recorded_step(): ..."


@pytest.fixture
def prover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> h200.Prover:
    """One over a tree that has only the tests above."""
    monkeypatch.setattr(h200, "ROOT", tmp_path)
    (tmp_path / "test_engine.py").write_text(TESTS)
    monkeypatch.setattr(h200, "STOP_S", 3)
    (tmp_path / "out").mkdir()
    prover = h200.Prover(tmp_path / "out", 600, h200.NAMES)
    prover._environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # faster, and none is needed
    return prover


def report(prover: h200.Prover, name: str) -> str:
    return (prover._out / name).read_text()


def test_each_failure_is_told_with_its_whole_cause(prover: h200.Prover) -> None:
    prover.check(h200.Part("engine", 300, ["test_engine.py"], alone=True))
    engine = prover.outcomes["engine"]
    assert engine.counts == {"passed": 1, "failed": 3, "skipped": 1}
    assert engine.verdict == "failed (1)"
    failures = report(prover, "failures.txt")
    for words in ("stream is capturing", "the engine has stopped", "said before", "test_chain[2]"):
        assert words in failures
    alone = {
        test: text.partition("PROCESS OF ITS OWN: ")[2] for test, text in engine.failures.items()
    }
    assert alone["test_engine.py::test_chain[1]"].startswith("failed (1)")
    assert alone["test_engine.py::test_after_others"].startswith("ok")
    table = report(prover, "report.md")
    assert "| engine | failed (1) |" in table and "| bf16 | not run |" in table
    assert "test_chain[1]: `RuntimeError: operation not permitted when stream" in table


@pytest.mark.slow
def test_what_hangs_is_stopped_with_its_children(prover: h200.Prover, tmp_path: Path) -> None:
    child = tmp_path / "child"
    hang = (
        "import subprocess, sys, time; print('so far', flush=True);"
        f"p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        f"open({str(child)!r}, 'w').write(str(p.pid)); time.sleep(600)"
    )
    verdict, seconds = prover.run("kernels", [sys.executable, "-c", hang], 15)
    assert verdict == "stopped after 15 s" and seconds < 60
    assert prover.log("kernels").read_text().startswith("so far\n")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and is_running(int(child.read_text())):
        time.sleep(0.05)
    assert not is_running(int(child.read_text()))


@pytest.mark.slow
def test_tests_that_hang_lose_only_themselves(prover: h200.Prover, tmp_path: Path) -> None:
    """Those before are counted; a process that ignores the order to stop is killed."""
    text = "import time\ndef test_before(): ...\ndef test_hangs(): time.sleep(600)\n"
    (tmp_path / "test_hangs.py").write_text(text)
    prover.check(h200.Part("kernels", 30, ["test_hangs.py"]))
    assert prover.outcomes["kernels"].verdict == "stopped after 30 s"
    assert prover.outcomes["kernels"].counts == {"passed": 2, "failed": 0, "skipped": 0}
    assert prover.outcomes["kernels"].note == "what ran when it was stopped counts as passed"
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    assert prover.run("engine", [sys.executable, "-c", deaf], 15)[0] == "stopped after 15 s"


def test_tests_that_are_all_skipped_prove_nothing(prover: h200.Prover, tmp_path: Path) -> None:
    (tmp_path / "test_engine.py").write_text(TESTS + "\n@pytest.mark.skip\ndef test_one(): ...\n")
    for words, verdict in (("fine", "ok"), ("two or one", "nothing ran")):
        prover.check(h200.Part("engine", 300, ["test_engine.py", "-k", words]))
        assert prover.outcomes["engine"].verdict == verdict
    assert "| engine | nothing ran |" in report(prover, "report.md")


def test_what_breaks_in_a_part_is_its_own(prover: h200.Prover, tmp_path: Path) -> None:
    prover.check(h200.Part("memcheck rows", 9, ["test_nothing.py"], tool=h200.MEMCHECK))
    assert prover.outcomes["memcheck rows"].verdict == "broke off"
    assert "test_nothing.py" in report(prover, "failures.txt")


def test_long_failures_keep_beginning_and_end() -> None:
    text = h200.shortened("first" + "x" * 10**6 + "last")
    assert len(text) < 21_000 and text.startswith("first") and text.endswith("last")
    assert h200.shortened("short") == "short"


def test_missing_tools_and_spent_time_are_verdicts(prover: h200.Prover, tmp_path: Path) -> None:
    part = h200.Part("racecheck", 30, ["test_engine.py"], tool=["--tool", "racecheck"])
    if subprocess.run(["which", "compute-sanitizer"], capture_output=True, check=False).returncode:
        prover.check(part)
        assert prover.outcomes["racecheck"].verdict == "not here: compute-sanitizer"
    spent = h200.Prover(tmp_path / "out", 0, h200.NAMES)
    spent.check(h200.Part("engine", 30, ["test_engine.py"]))
    assert spent.outcomes["engine"].verdict == "no time left"
    assert json.loads(report(spent, "report.json"))["parts"]


def test_one_case_of_each_function_that_records_nothing_is_sanitized(
    prover: h200.Prover, tmp_path: Path
) -> None:
    (tmp_path / "test_engine.py").write_text(TESTS + RECORDING)
    part = h200.Part("memcheck rows", 9, ["test_engine.py"], tool=h200.MEMCHECK)
    command = h200.command_of(part, Path("record"), Path("xml"), {"PATH": "/usr/bin:/bin"})
    assert command[:5] == ["compute-sanitizer", *h200.MEMCHECK]
    chosen = [word.partition("::")[2] for word in command if "::" in word]
    assert chosen == ["test_fine", "test_chain[1]", "test_after_others", "test_two"]


def test_parts_name_tests_that_exist() -> None:
    for part in h200.CHECKS:
        paths = [word for word in part.tests if word.startswith("tests/")]
        assert all((h200.ROOT / path).exists() for path in paths), part.name


def test_distributions_are_found_without_being_installed(tmp_path: Path) -> None:
    path = h200.search_path(tmp_path / "site")
    show = (
        "from importlib.metadata import entry_points as e;"
        "print(sorted({p.value for p in e(group='hotshoe')}));"
        "import hotshoe_cuda.plugin, hotshoe_models.plugin, hotshoe.cli"
    )
    done = subprocess.run(
        [sys.executable, "-c", show],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "hotshoe_cuda.plugin" in done.stdout and "hotshoe_conformance.plugin" in done.stdout


@pytest.mark.parametrize(
    ("name", "value", "judged"),
    [
        ("a one stream 128/256", 4.4, "met"),
        ("a one stream 128/256", 4.41, "MISSED"),
        ("c 512 x (1024/128)", 36_500.0, "met"),
        ("c 512 x (1024/128)", 36_499.0, "MISSED"),
        ("i idle 32 x 1024", 2.9, "met"),
    ],
)
def test_bars(name: str, value: float, judged: str) -> None:
    [row] = [row for row in h200.rows(h200.BF16, {name: {"median": value}}) if row[0] == name]
    assert row[-1] == judged
    others = [row[-1] for row in h200.rows(h200.BF16, {name: {"median": value}}) if row[0] != name]
    assert set(others) == {"not measured"}


def test_what_was_measured_before_a_stop_is_shown(prover: h200.Prover, tmp_path: Path) -> None:
    """A benchmark that fails in its second case."""
    script = tmp_path / "benchmarks/gpu.py"
    script.parent.mkdir()
    script.write_text(
        "import json, sys\n"
        "found = {'a one stream 128/256': {'median': 4.2}, 'limits': {'copy_TB_s': 4.3}}\n"
        "open(sys.argv[sys.argv.index('--json') + 1], 'w').write(json.dumps(found))\n"
        "raise SystemExit('no memory')\n"
    )
    prover.time("bf16", 3)
    outcome = prover.outcomes["bf16"]
    assert (outcome.verdict, outcome.note) == ("failed (1)", "1 of 10 bars met")
    table = report(prover, "report.md")
    assert "| a one stream 128/256 | 4.200 | 3.45 | 4.9 | 4.4 | met |" in table
    assert "no memory" in report(prover, "failures.txt")


def test_cases_of_the_benchmark_are_those_of_the_tables() -> None:
    for table, cases, _, _ in h200.BENCHES.values():
        assert {name[0] for name in table} in (set(cases.split(",")), {"s"})


@pytest.mark.parametrize("name", h200.SHAPES)
def test_every_shape_is_a_model_of_the_benchmark(name: str) -> None:
    assert (Path(__file__).parents[2] / "benchmarks/models" / name / "config.json").is_file()


def test_a_group_stands_for_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(h200.GROUPS["shapes"]) == {f"shape-{name}" for name in h200.SHAPES}
    assert h200.main(["--only", "shapes", "--dry-run"]) == 0


def test_the_first_cause_of_a_chain_is_told() -> None:
    assert h200.first_error("E   RuntimeError: a\n\nE   EngineDeadError: b") == "RuntimeError: a"
    assert h200.first_error("KeyError: a\nOSError: b\nthe end") == "OSError: b"
    assert h200.first_error("so far\nkilled\n") == "killed"
    assert h200.first_error("") == ""


def test_files_come_back_together(prover: h200.Prover) -> None:
    prover.run("engine", [sys.executable, "-c", "print('one')"], 100)
    prover.run("tokens", [sys.executable, "-c", "print('two')"], 100)
    prover.write()
    assert sorted(path.name for path in prover._out.iterdir()) == [
        "failures.txt",
        "logs.txt",
        "report.json",
        "report.md",
    ]
    assert report(prover, "logs.txt").split("=====")[1:] == [" engine\none\n\n", " tokens\ntwo\n"]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert h200.main(["--only", "engine", "bf16", "--dry-run"]) == 0
    assert "tests/platforms/cuda" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        h200.main(["--only", "nothing"])
