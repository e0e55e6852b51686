"""The modules that packages from outside may import are listed, and their names are frozen.

When it fails after an intended change, run `make reference`, read the diff, and say it in
CHANGELOG.md. What is removed has to have warned for one minor version.
"""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def tool(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_public_api", root / "tools/make_public_api.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_public_modules_are_frozen(tool: ModuleType) -> None:
    assert tool.FILE.read_text(encoding="utf-8") == tool.text(), "run `make reference`"


def test_the_list_has_what_platforms_need(tool: ModuleType, root: Path) -> None:
    listed = tool.modules()
    assert len(listed) == len(set(listed)) >= 10
    example = root / "examples/platform-sim/hotshoe_sim"
    for path in example.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "hotshoe":
                assert node.module in listed, (path.name, node.module)


def test_names_and_optional_parameters_show(tool: ModuleType) -> None:
    lines = tool.text().splitlines()
    at = lines.index("class DeviceFacts(object)")
    assert lines[at + 1 : at + 8] == [
        "    platform",
        "    device",
        "    name",
        "    arch",
        "    memory_bytes",
        "    compute_units",
        "    features (optional)",
    ]
    assert "    probe(self)" in lines
