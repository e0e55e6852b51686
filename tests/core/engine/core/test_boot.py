"""One way to bring an engine up: what it says of itself, and what a front end is spared."""

import dataclasses
import subprocess
import sys
from pathlib import Path

from hotshoe.config import EngineConfig
from hotshoe.engine.core.boot import boot, load_tokenizer

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
    assert load_tokenizer(EngineConfig(tokenizer=str(model_dir)), Path("/nowhere")) is not None


def test_a_front_end_loads_no_heavy_library(model_dir: Path) -> None:
    code = FRONT.format(model=str(model_dir))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
