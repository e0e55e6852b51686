"""`hotshoe preload`: it says what it keeps, ends on a signal, and names what is wrong."""

import os
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from hotshoe.cli import preload
from hotshoe.cli.keeper import place
from hotshoe.errors import CheckpointError, ConfigError, MemoryLimitError
from hotshoe.loader.resident import ResidentFiles


def run(*words: str) -> int:
    parser = ArgumentParser()
    command = preload.Preload()
    command.add_arguments(parser)
    return command.run(parser.parse_args([*words, "--no-imports"]))


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.safetensors").write_bytes(bytes(2**20))
    return str(tmp_path)


@pytest.mark.parametrize("number", preload.ENDING)
def test_it_keeps_files_until_a_signal_comes(model, monkeypatch, capsys, number) -> None:
    released: list[bool] = []
    monkeypatch.setattr(ResidentFiles, "close", lambda self: released.append(True))
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


class FakeKeeper:
    """Serves until its end is seen, or as a fork of its process."""

    request: object = None

    def __init__(self, name: str, environment: dict[str, str]) -> None:
        assert name == place.digest() and environment == dict(os.environ)  # noqa: TID251

    def serve(self, end: Event, say: Callable[[str], None]) -> object:
        say("serving")
        return self.request

    def close(self) -> None:
        preload.say("closed")


def keep_imports(model: str) -> int:
    parser = ArgumentParser()
    command = preload.Preload()
    command.add_arguments(parser)
    return command.run(parser.parse_args([model]))


@pytest.fixture
def _fakes(monkeypatch) -> None:
    monkeypatch.setattr("hotshoe.loader.resident._lock", lambda pages, size: None)
    monkeypatch.setattr("hotshoe.cli.keeper.forking.ImportKeeper", FakeKeeper)
    monkeypatch.setattr("hotshoe.cli.keeper.imports.import_commands", lambda plugins: None)
    monkeypatch.setattr("hotshoe.engine.api.ahead.import_model", lambda config, plugins: "cpu")
    monkeypatch.setattr("hotshoe.runner.forkable.hindrance", lambda device: "")
    monkeypatch.setattr(preload, "Event", type("Ended", (), {"wait": lambda self: None}))


@pytest.mark.usefixtures("_fakes")
class TestImports:
    def test_they_are_kept_until_the_end(self, model, capsys) -> None:
        assert keep_imports(model) == 0
        assert capsys.readouterr().err.splitlines() == [
            f"keeping {model}/model.safetensors",
            f"keeping imports for: {', '.join(place.COMMANDS)}",
            "0.00 GiB of memory are kept; SIGTERM or Ctrl-C ends it",
            "serving",
            "closed",
            "let go of 0.00 GiB",
        ]

    def test_a_fork_becomes_what_was_asked_for(self, model, monkeypatch, capsys) -> None:
        def run() -> int:
            assert "closed" in capsys.readouterr().err, "nothing of the keeper is left"
            return 7

        monkeypatch.setattr(FakeKeeper, "request", SimpleNamespace(run=run))
        assert keep_imports(model) == 7
        assert not capsys.readouterr().err

    def test_a_model_that_needs_options_leaves_what_all_need(
        self, model, monkeypatch, capsys
    ) -> None:
        def refuse(config: object, plugins: object) -> str:
            raise ConfigError("it needs --quantization")

        monkeypatch.setattr("hotshoe.engine.api.ahead.import_model", refuse)
        assert keep_imports(model) == 0
        said = capsys.readouterr().err
        assert "only what all models need is imported: it needs --quantization" in said
        assert "serving" in said

    def test_a_process_that_cannot_be_forked_keeps_files(self, model, monkeypatch, capsys) -> None:
        monkeypatch.setattr("hotshoe.runner.forkable.hindrance", lambda device: "threads run")
        assert keep_imports(model) == 0
        said = capsys.readouterr().err
        assert "imports are not kept: threads run" in said
        assert "serving" not in said


@pytest.mark.slow
def test_commands_run_by_a_keeper_as_by_themselves() -> None:
    program = [sys.executable, "-m", "hotshoe.cli"]
    words = [*program, "generate", "demo", "-p", "Hello", "--max-tokens", "5", "-q"]
    alone = subprocess.run(words, capture_output=True, text=True, check=True)
    pipes = {"stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*program, "preload", "demo"], **pipes) as keeper:
        while "are kept" not in (line := keeper.stderr.readline()):
            assert line
        forked = subprocess.run(words, capture_output=True, text=True, check=True)
        assert (forked.stdout, forked.stderr) == (alone.stdout, "")
        serving = [*program, "serve", "demo", "--port", "0"]
        with subprocess.Popen(serving, **pipes) as server:
            while "ready: demo" not in (line := server.stderr.readline()):
                assert line
            children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text()
            assert children.strip(), "the server runs in a fork of the keeper"
            keeper.terminate()
            assert keeper.wait(60) == 0
            assert server.poll() is None, "which goes on without it"
            server.terminate()
            assert server.wait(60) == 0
