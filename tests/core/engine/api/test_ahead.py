"""What is imported ahead of an engine."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.api import ahead
from hotshoe.errors import EngineError, UserError
from hotshoe.plugins import PluginManager

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def test_what_a_model_imports_is_imported_and_its_platform_prepares(
    tmp_path: Path, monkeypatch
) -> None:
    def explain(config: EngineConfig, plugins: PluginManager) -> object:
        importlib.import_module("module_of_a_model")
        sys.modules["made_of_nothing"] = ModuleType("made_of_nothing")
        facts, found = SimpleNamespace(device="thing:0"), SimpleNamespace(platform="things")
        return SimpleNamespace(facts=facts, config=found)

    def named(config: EngineConfig, plugins: PluginManager) -> object:
        assert config.platform == "things"
        return SimpleNamespace(prepare=lambda: prepared.append("module_of_a_model" in sys.modules))

    prepared: list[bool] = []
    (tmp_path / "module_of_a_model.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(ahead, "explain", explain)
    monkeypatch.setattr(ahead, "named_platform", named)
    assert ahead.import_model(EngineConfig("demo"), PluginManager()) == "thing:0"
    assert prepared == [True]
    assert "made_of_nothing" not in sys.modules
    del sys.modules["module_of_a_model"]


def test_a_model_is_explained_without_a_trace(monkeypatch) -> None:
    monkeypatch.setattr(ahead, "named_platform", lambda config, plugins: None)
    assert ahead.import_model(EngineConfig("demo", platform="cpu"), PluginManager()) == "cpu"


def test_a_model_that_cannot_be_built_is_the_users_affair() -> None:
    with pytest.raises(UserError, match="unknown platform"):
        ahead.import_model(EngineConfig("demo", platform="no-such"), PluginManager())


@pytest.mark.parametrize("end", [lambda: os._exit(7), lambda: 1 / 0])
def test_a_fork_that_ends_harms_nobody(end, capfd) -> None:
    with pytest.raises(EngineError, match="has ended"):
        ahead._tried(end)
