"""A model by its name on a hub: the same text as from its directory, through every front end."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.plugins.hub.conftest import FIRST, Hub

import hotshoe_demo

NAME = "org/tiny"
ENGINE = """
import asyncio
from hotshoe import AsyncEngine, EngineConfig, SamplingParams

async def main():
    engine = AsyncEngine(EngineConfig("org/tiny", platform="cpu"), transport="process")
    params = SamplingParams(temperature=0, max_tokens=8)
    async for update in engine.generate("Once", params):
        print(update.sequences[0].new_text, end="")
    engine.close()

asyncio.run(main())
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    found = Hub(hotshoe_demo.MODEL)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def at_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_OFFLINE")


def hotshoe(arguments: list[str]) -> str:
    command = [sys.executable, "-m", "hotshoe.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_name_gives_what_its_directory_gives(hub: Hub) -> None:
    asked = ["-p", "Once", "--temperature", "0", "--max-tokens", "8", "--platform", "cpu"]
    explained = json.loads(hotshoe(["explain", NAME, "--platform", "cpu", "--json"]))
    assert explained["config"]["revision"] == FIRST
    assert not any(name.endswith(".safetensors") for name in hub.files_asked())
    text = hotshoe(["generate", "demo", *asked])
    assert text.strip()
    assert hotshoe(["generate", NAME, *asked]) == text
    assert any(name.endswith(".safetensors") for name in hub.files_asked())
    hub.asked.clear()
    command = [sys.executable, "-c", ENGINE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in text
    assert hub.files_asked() == set()
