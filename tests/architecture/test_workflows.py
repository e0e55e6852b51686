"""What the workflows run is there: commands and their flags, make targets, files."""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

EXPRESSION = re.compile(r"\$\{\{\s*matrix\.(\w+)\s*\}\}")
#: What runs a step's other commands.
PROGRAMS = {"make", ".ci/run", ".venv/bin/hotshoe", ".venv/bin/python"}


@pytest.fixture(scope="module")
def jobs(root: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted((root / ".github/workflows").glob("*.yml")):
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            found[f"{path.name}: {name}"] = job
    return found


def matrix(job: dict[str, Any]) -> list[dict[str, str]]:
    """Return the values that a job runs with."""
    axes = dict(job.get("strategy", {}).get("matrix", {}))
    included = axes.pop("include", [{}])
    whole = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [{**one, **other} for one in whole for other in included]


@pytest.fixture(scope="module")
def lines(jobs) -> list[tuple[str, list[str]]]:
    """Every line that some runner executes, and where it stands."""
    found = []
    for place, job in jobs.items():
        for values, step in itertools.product(matrix(job), job["steps"]):
            for line in step.get("run", "").splitlines():
                text = EXPRESSION.sub(lambda match, v=values: v[match[1]], line)
                assert "${{" not in text, (place, line)
                found.append((f"{place}: {text}", shlex.split(text)))
    return found


def test_every_program_is_known(lines) -> None:
    assert {words[0] for _, words in lines} == PROGRAMS


def test_targets_of_make_exist(root: Path, lines) -> None:
    text = (root / "Makefile").read_text()
    stamps = re.search(r"^STAMPS := \$\(VENV\)/(.*)$", text, re.MULTILINE)
    assert stamps is not None
    text = text.replace("$(STAMPS)", f".venv/{stamps[1]}")
    targets = set(re.findall(r"^([\w./-]+):(?!=)", text, re.MULTILINE))
    used = {target for _, words in lines if words[0] == "make" for target in words[1:]}
    assert used and used <= targets


def test_flags_of_commands_exist(lines, commands) -> None:
    count = 0
    for place, words in lines:
        if words[0] != ".venv/bin/hotshoe":
            continue
        words = words[1 : words.index(">")] if ">" in words else words[1:]
        name = next((n for n in (" ".join(words[:2]), words[0]) if n in commands), None)
        assert name is not None, place
        commands[name].parse(words[len(name.split()) :])
        count += 1
    assert count > 20


def test_files_exist(root: Path, lines) -> None:
    named = {word for _, words in lines for word in words if word.startswith(("tests/", ".ci/"))}
    assert any(name.startswith("tests/platforms/") for name in named)
    assert [name for name in sorted(named) if not (root / name).exists()] == []


def test_platforms_of_the_matrix_exist(root: Path, jobs) -> None:
    """And each that has a device of its own is there."""
    folders = {path.parent.name for path in root.glob("platforms/*/pyproject.toml")}
    named = {
        values["platform"]
        for job in jobs.values()
        for values in matrix(job)
        if "platform" in values
    }
    assert named == folders - {"cpu", "triton"}


def test_artifacts_are_written_by_a_step(jobs) -> None:
    for place, job in jobs.items():
        written = {w for s in job["steps"] for w in re.findall(r"> (\S+)", s.get("run", ""))}
        uploads = [s["with"]["path"] for s in job["steps"] if "upload" in s.get("uses", "")]
        assert set(uploads) <= written, place
