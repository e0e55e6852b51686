"""The source tree, its import graph, and the parsers of all commands, made once."""

import ast
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

from hotshoe.cli.main import HOOK
from hotshoe.cli.parser import Parser
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager


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


@pytest.fixture(scope="session")
def commands() -> Iterator[dict[str, Parser]]:
    """Every command's parser; `serve` does something to signals that is taken back."""
    handler = signal.getsignal(signal.SIGTERM)
    found = {}
    for name, entry in PluginManager().mapping(HOOK).items():
        found[name] = Parser(f"hotshoe {name}", entry.help)
        resolve_lazy(entry.target)().add_arguments(found[name])
    yield found
    signal.signal(signal.SIGTERM, handler)
