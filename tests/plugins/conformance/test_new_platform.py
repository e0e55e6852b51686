"""Templates become packages; tests/examples follows the tutorial with one."""

import ast
import tomllib

import pytest

from hotshoe import __version__
from hotshoe.plugins import HOOK_API
from hotshoe_conformance.new_platform import render


@pytest.mark.parametrize("name", ["toaster", "bread_oven", "x9"])
def test_files(name: str) -> None:
    files = render(name)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["entry-points"]["hotshoe"] == {name: f"hotshoe_{name}.plugin"}
    major, minor, _ = __version__.split(".")
    assert project["dependencies"][0] == f"hotshoe>={major}.{minor},<{major}.{int(minor) + 2}"
    sources = {path: text for path, text in files.items() if path.endswith(".py")}
    assert len(sources) == 5
    for text in sources.values():
        assert ast.get_docstring(ast.parse(text))
        assert max(map(len, text.splitlines())) <= 100 + 3 * max(0, len(name) - len("toaster"))
    assert f"HOTSHOE_HOOK_API = {HOOK_API}\n" in sources[f"hotshoe_{name}/plugin.py"]
