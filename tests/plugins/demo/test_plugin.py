"""The plugin names a directory that is there."""

from pathlib import Path

from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint
from hotshoe_demo import plugin


def test_demo_is_a_model_directory() -> None:
    manager = PluginManager([EntryPoint("demo", "hotshoe-demo", "0.1.0", lambda: plugin)])
    assert [record.error for record in manager.records] == [None]
    path = Path(manager.pick("model", "demo", "hotshoe_named_models"))
    assert (path / "config.json").is_file()
    assert (path / "model.safetensors").is_file()
