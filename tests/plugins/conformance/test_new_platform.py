"""Templates become packages; tests/examples follows the tutorial with one."""

import ast
import importlib
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from hotshoe import __version__
from hotshoe.errors import ConfigError
from hotshoe.plugins import HOOK_API, PluginManager
from hotshoe.plugins.manager import EntryPoint
from hotshoe.plugins.platforms import candidates_of, choose_platform
from hotshoe.slots import REFERENCE, SLOTS, Decision, NormSpec, Selector
from hotshoe_conformance.new_platform import render, write


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


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginManager:
    """A package as the template wrote it for hook API 1: the version that it states is all that
    has changed since."""
    path = write("crumpet", tmp_path / "package")
    plugin = path / "hotshoe_crumpet/plugin.py"
    text = plugin.read_text(encoding="utf-8")
    plugin.write_text(text.replace(f"HOOK_API = {HOOK_API}", "HOOK_API = 1"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(path))
    point = EntryPoint(
        "crumpet", "crumpets", "3.1", lambda: importlib.import_module("hotshoe_crumpet.plugin")
    )
    with pytest.warns(DeprecationWarning, match="plugin crumpet for hook API 1"):
        return PluginManager([point])


@pytest.mark.parametrize(("contract", "served"), [(1, True), (2, False)])
def test_a_package_written_for_hook_api_1(
    older: PluginManager, contract: int, served: bool
) -> None:
    platform = choose_platform(older, "crumpet")
    slots = SLOTS | {"rms_norm": replace(SLOTS["rms_norm"], contract=contract)}
    selector = Selector(slots, candidates_of(platform, older), platform.facts())
    decision: Decision = selector.decide("rms_norm", NormSpec(64, 1e-6, "float32"))
    assert decision.chosen == ("crumpet" if served else REFERENCE)
    if not served:
        reason = dict(decision.others)["crumpet"].reason
        assert "built for hook API 1, but slot rms_norm changed with 2" in reason
        assert "install a version of its package for hook API 2" in reason


@pytest.mark.parametrize(
    ("name", "place", "said"),
    [
        ("Toaster", "new", "cannot name a platform"),
        ("cpu", "new", "hotshoe-platform-cpu is installed already; choose another"),
        ("models", "new", "hotshoe-models is installed already"),
        ("crumpet", "", "is not empty; name another one with --dir"),
        ("crumpet", "file", "cannot write .*file: Not a directory; name another one with --dir"),
        ("crumpet", "file/in", "cannot write .*in: Not a directory"),
    ],
)
def test_packages_that_cannot_be_written(name: str, place: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("taken")
    with pytest.raises(ConfigError, match=said):
        write(name, tmp_path / place)
