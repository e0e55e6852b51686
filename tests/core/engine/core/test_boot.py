"""One way to bring an engine up: what it says of itself, and what a front end is spared."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.core.boot import boot, load_tokenizer
from hotshoe.errors import PluginError
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint

TEMPLATE = "<{{ messages[0].content }}>"

FRONT = """
import sys
from hotshoe import AsyncEngine, EngineConfig
engine = AsyncEngine(EngineConfig(model={model!r}, platform="null"), transport="process")
engine.close()
print(*(m for m in ("torch", "numpy", "pickle") if m in sys.modules))
"""


def test_the_description_names_everything(model_dir: Path, plugins) -> None:
    booted = boot(EngineConfig(model=str(model_dir), platform="null"), plugins)
    info = booted.info
    assert info.config == booted.core.setup.config
    assert (info.model, info.model_path) == (str(model_dir), str(model_dir))
    assert info.num_blocks == sum(booted.core.workers.num_blocks)
    assert info.memory == {"weights": 0, "kv_cache": info.num_blocks * 1024}
    assert info.facts.platform == "null" and info.decisions == ()
    assert booted.tokenizer is not None
    assert all(seconds >= 0 for seconds in info.startup.values())
    assert dataclasses.is_dataclass(info)


def test_a_tokenizer_only_where_one_is_wanted(model_dir: Path) -> None:
    assert load_tokenizer(EngineConfig(skip_tokenizer_init=True), Path("/nowhere")) is None
    for name in (str(model_dir), "demo"):  # of a directory, and of a plugin's model
        assert load_tokenizer(EngineConfig(tokenizer=name), Path("/nowhere")) is not None


class Templates:
    HOTSHOE_HOOK_API = 2

    @hookimpl
    def hotshoe_chat_templates(self) -> dict[str, str]:
        return {"Described": f"{__name__}:TEMPLATE", "Broken": f"{__name__}:NOTHING"}


@pytest.fixture
def offering() -> PluginManager:
    return PluginManager([EntryPoint("plugin", "dist", "1", Templates)])


def bare(model_dir: Path, path: Path, architectures: object) -> Path:
    """Make a model directory without a chat template."""
    path.mkdir()
    shutil.copy(model_dir / "tokenizer.json", path)
    (path / "config.json").write_text(json.dumps({"architectures": architectures}))
    return path


def test_a_plugin_has_templates_for_models_without(
    model_dir: Path, tmp_path: Path, offering: PluginManager
) -> None:
    def templates(path: Path, **options: str) -> dict[str, str]:
        found = load_tokenizer(EngineConfig(**options), path, offering)
        assert found is not None
        return found.chat_templates

    path = bare(model_dir, tmp_path / "described", ["Described"])
    assert templates(path) == {"default": TEMPLATE}
    assert templates(path, chat_template="{{ 1 }}") == {"default": "{{ 1 }}"}
    (path / "chat_template.jinja").write_text("{{ 2 }}")
    assert templates(path) == {"default": "{{ 2 }}"}
    for i, other in enumerate((["Other"], [], [3], "Described", None)):
        assert templates(bare(model_dir, tmp_path / str(i), other)) == {}


def test_a_template_that_is_not_there_is_its_plugins_fault(
    model_dir: Path, tmp_path: Path, offering: PluginManager
) -> None:
    path = bare(model_dir, tmp_path / "broken", ["Broken"])
    with pytest.raises(PluginError, match=r"plugin.*NOTHING"):
        load_tokenizer(EngineConfig(), path, offering)


def test_a_front_end_loads_no_heavy_library(model_dir: Path) -> None:
    code = FRONT.format(model=str(model_dir))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
