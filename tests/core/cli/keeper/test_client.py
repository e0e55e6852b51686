"""Commands that no keeper runs start as ever."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hotshoe.cli.keeper import client, place


@pytest.mark.parametrize("words", [[], ["--version"], ["plugins"], ["bench"], ["bench", "startup"]])
def test_other_commands_look_for_no_keeper(words: list[str], monkeypatch) -> None:
    monkeypatch.setattr(place, "folder", lambda: pytest.fail("looked"))
    assert client.run_forked(words) is None


@pytest.mark.parametrize("words", [["generate"], ["bench", "latency"], ["serve", "demo"]])
def test_without_a_keeper_they_run_here(words: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(place, "folder", lambda: tmp_path / "none")
    assert client.run_forked(words) is None
    monkeypatch.setattr(place, "folder", lambda: tmp_path)
    tmp_path.chmod(0o700)
    (tmp_path / f"{place.digest()}-1.fork").touch()
    assert client.run_forked(words) is None


def test_with_a_stream_closed_they_run_here(monkeypatch, tmp_path: Path) -> None:
    def closed(number: int) -> None:
        raise OSError

    monkeypatch.setattr(place, "folder", lambda: tmp_path)
    monkeypatch.setattr(place, "digest", lambda: pytest.fail("looked"))
    monkeypatch.setattr(client, "os", SimpleNamespace(fstat=closed))
    tmp_path.chmod(0o700)
    assert client.run_forked(["serve"]) is None


def test_a_process_that_is_lost_is_told(ask, keep) -> None:
    keep()
    lost = ask("os.kill(os.getppid(), signal.SIGKILL)")
    assert lost.communicate(timeout=60)[0] == "hotshoe: error: the process that ran this was lost\n"
    assert lost.returncode == 1
