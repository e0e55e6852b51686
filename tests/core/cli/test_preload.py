"""`hotshoe preload`: it says what it keeps, ends on a signal, and names what is wrong."""

import os
import signal
from argparse import ArgumentParser
from pathlib import Path

import pytest

from hotshoe.cli import preload
from hotshoe.errors import CheckpointError, ConfigError, MemoryLimitError
from hotshoe.loader.resident import ResidentFiles


def run(*words: str) -> int:
    parser = ArgumentParser()
    command = preload.Preload()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.safetensors").write_bytes(bytes(2**20))
    return str(tmp_path)


@pytest.mark.parametrize("number", preload.ENDING)
def test_it_keeps_files_until_a_signal_comes(model, monkeypatch, capsys, number) -> None:
    released: list[bool] = []
    monkeypatch.setattr(ResidentFiles, "release", lambda self: released.append(True))
    say = preload.say

    def answer(line: str) -> None:
        say(line)
        if "are kept" in line:
            assert not released
            os.kill(os.getpid(), number)

    monkeypatch.setattr(preload, "say", answer)
    monkeypatch.setattr("hotshoe.loader.resident._lock", lambda pages, size: None)
    before = signal.getsignal(number)
    assert run(model) == 0
    assert released
    assert signal.getsignal(number) is before
    assert capsys.readouterr().err.splitlines() == [
        f"keeping {model}/model.safetensors",
        "0.00 GiB of memory are kept; SIGTERM or Ctrl-C ends it",
        "let go of 0.00 GiB",
    ]


def test_limits_and_names_are_checked(model, tmp_path: Path) -> None:
    assert preload.half_of_memory() > 2**20
    with pytest.raises(ConfigError, match="--max-memory-bytes must be 1 or more, not 0"):
        run(model, "--max-memory-bytes", "0")
    with pytest.raises(MemoryLimitError, match="raise --max-memory-bytes"):
        run(model, "--max-memory-bytes", "1000")
    with pytest.raises(CheckpointError):
        run(str(tmp_path / "gone"))


def test_quantized_weights_are_kept_as_well(model, tmp_path: Path, monkeypatch, capsys) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    with pytest.raises(ConfigError, match="has no quantized weights"):
        run(model, "--quantization-cache-dir", str(folder))
    for number in range(2):
        (folder / f"{number:064x}.safetensors").write_bytes(bytes(2**20))
    (folder / "hotshoe-1.part").write_bytes(bytes(2**20))
    locked: list[int] = []
    monkeypatch.setattr("hotshoe.loader.resident._lock", lambda pages, size: locked.append(size))
    monkeypatch.setattr(preload, "Event", type("Ended", (), {"wait": lambda self: None}))
    assert run(model, "--quantization-cache-dir", str(folder)) == 0
    assert locked == [2**20] * 3
    assert f"keeping 2 files of quantized weights in {folder}\n" in capsys.readouterr().err
