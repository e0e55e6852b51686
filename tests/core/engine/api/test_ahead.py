"""What is imported ahead of an engine."""

import os
import sys
from types import SimpleNamespace

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.api import ahead
from hotshoe.errors import EngineError, UserError
from hotshoe.plugins import PluginManager

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def test_what_a_model_imports_is_imported_and_its_platform_prepares(monkeypatch) -> None:
    prepared: list[bool] = []
    platform = SimpleNamespace(prepare=lambda: prepared.append(True))
    monkeypatch.setattr(ahead, "named_platform", lambda config, plugins: platform)
    plugins = PluginManager()
    monkeypatch.delitem(sys.modules, "hotshoe_cpu.graph", raising=False)
    assert ahead.import_model(EngineConfig("demo", platform="cpu"), plugins) == "cpu"
    assert "hotshoe_cpu.graph" in sys.modules
    assert prepared == [True]


def test_a_model_that_cannot_be_built_is_the_users_affair() -> None:
    with pytest.raises(UserError, match="unknown platform"):
        ahead.import_model(EngineConfig("demo", platform="no-such"), PluginManager())


@pytest.mark.parametrize("end", [lambda: os._exit(7), lambda: 1 / 0])
def test_a_fork_that_ends_harms_nobody(end, capfd) -> None:
    with pytest.raises(EngineError, match="has ended"):
        ahead._tried(end)
