"""The source tree and its import graph, read once."""

import ast
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest


class Source(NamedTuple):
    """One Python file of a distribution."""

    path: str
    text: str
    tree: ast.Module


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def sources(root: Path) -> list[Source]:
    """Every Python file of core, platforms, plugins and the native package."""
    found = []
    for folder in ("core", "platforms", "plugins", "csrc"):
        for path in sorted((root / folder).rglob("*.py")):
            relative = path.relative_to(root)
            if "build" not in relative.parts:
                text = path.read_text(encoding="utf-8")
                found.append(Source(str(relative), text, ast.parse(text)))
    assert len(found) > 50
    return found


@pytest.fixture(scope="session")
def graph() -> grimp.ImportGraph:
    """Imports at run time among core's modules."""
    return grimp.build_graph("hotshoe", exclude_type_checking_imports=True)
