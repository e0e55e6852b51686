"""examples/platform-sim: a platform from outside, with a device of its own, installed with pip."""

import ast
import json
from pathlib import Path

import pytest

MAX_CORE_MODULES = 6


@pytest.fixture(scope="module")
def sim(root: Path) -> Path:
    return root / "examples/platform-sim"


@pytest.fixture(scope="module")
def installed(sim: Path, shared, tmp_path_factory: pytest.TempPathFactory):
    """An installation that has the platform."""
    shared.install(sim, tmp_path_factory.mktemp("sim"))
    return shared


def test_it_knows_few_modules_of_core_and_patches_nothing(sim: Path) -> None:
    core, assigned = set(), []
    for path in sim.glob("hotshoe_sim/*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("hotshoe."):
                core.add(node.module)
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("hotshoe.") for alias in node.names)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
                assigned.append(path.name)
    assert 3 <= len(core) <= MAX_CORE_MODULES, sorted(core)
    assert assigned == []


def test_the_engine_runs_on_it(sim: Path, installed) -> None:
    found = json.loads(installed.ok("hotshoe", "platforms", "--json"))
    assert [p["status"] for p in found if p["platform"] == "sim"] == ["available"]
    words = ["generate", "demo", "-p", "The list of files", "--max-tokens", "6", "--temperature"]
    here = installed.ok("hotshoe", *words, "0", "--platform", "sim", "--dtype", "float32")
    host = installed.ok("hotshoe", *words, "0", "--platform", "cpu", "--dtype", "float32")
    assert here == host
    assert " passed" in installed.ok("pytest", str(sim / "tests/test_device.py"))


@pytest.mark.slow
def test_it_conforms(sim: Path, installed) -> None:
    assert " passed" in installed.ok("pytest", str(sim / "tests/test_conformance.py"))


def test_what_cannot_be_is_refused_by_name(installed) -> None:
    words = ("generate", "demo", "-p", "The", "--platform", "sim")
    done = installed.run("hotshoe", *words, "--platform-options.memory_mib", "64")
    assert done.returncode == 2
    assert "KV cache may take" in done.stderr
    done = installed.run("hotshoe", *words, "--platform-options.memory", "64")
    assert done.returncode == 2
    assert "it has memory_mib" in done.stderr
