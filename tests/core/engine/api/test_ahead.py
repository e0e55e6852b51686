"""What is imported ahead of an engine."""

from types import SimpleNamespace

import torch

from hotshoe.config import EngineConfig
from hotshoe.engine.api import ahead
from hotshoe.plugins import PluginManager


def test_a_model_is_built_by_one_thread_and_its_platform_prepares(monkeypatch) -> None:
    seen: list[int] = []
    platform = SimpleNamespace(prepare=lambda: seen.append(torch.get_num_threads()))
    monkeypatch.setattr(ahead, "choose_platform", lambda plugins, name: platform)
    number = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert ahead.import_model(EngineConfig("demo", platform="cpu"), PluginManager()) == "cpu"
        assert (seen, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(number)
