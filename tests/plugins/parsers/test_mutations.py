"""The samples notice every marker that is broken, wherever its text stands in a format's module."""

import ast
import importlib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotshoe.text.parsing import ParserFormat

MODULES = (
    "answers deepseek gemma harmony json_calls kimi kimi_k3 llama minimax mistral pythonic "
    "thinking xml_calls"
).split()
BREAK = "\u241b"

Formats = dict[str, ParserFormat]


def formats_of(module: types.ModuleType) -> Formats:
    return {f.name: f for f in vars(module).values() if isinstance(f, ParserFormat)}


def places(tree: ast.Module, markers: set[str]) -> list[ast.Constant]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [node for node in nodes if node.value in markers]


def mutants(name: str) -> Iterator[tuple[str, Formats]]:
    """Yield the module's formats with one marker broken in one place, and where.

    Marks that only tell templates apart are left out: no response holds them.
    """
    original = importlib.import_module(f"hotshoe_parsers.{name}")
    assert original.__file__
    source = Path(original.__file__).read_text(encoding="utf-8")
    markers = {m for found in formats_of(original).values() for m in found.markers}
    for index in range(len(places(ast.parse(source), markers))):
        tree = ast.parse(source)
        node = places(tree, markers)[index]
        where = f"{node.value} in line {node.lineno}"
        node.value = node.value[:-1] + BREAK
        mutant = types.ModuleType(original.__name__)  # dataclasses look their module up by name
        exec(compile(tree, original.__file__, "exec"), vars(mutant))
        found = formats_of(mutant)
        if any(BREAK in "".join(f.markers) for f in found.values()):
            yield where, found


@pytest.mark.parametrize("name", MODULES)
def test_every_broken_marker_is_noticed(name: str, as_expected, samples_of) -> None:
    broken = list(mutants(name))
    assert broken
    for where, formats in broken:
        noticed = 0
        for sample in samples_of(name).values():
            found = formats[sample.get("format", next(iter(formats)))]
            try:
                as_expected(found, sample)
            except AssertionError:
                noticed += 1
        assert noticed, where
