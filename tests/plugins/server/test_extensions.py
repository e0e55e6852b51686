"""Extensions are foreign code: what it does is said under its name."""

import threading

import pytest

from hotshoe import patience
from hotshoe.errors import PluginError
from hotshoe_server.extensions import blamed


def test_one_that_takes_long_is_named_meanwhile(monkeypatch) -> None:
    said = threading.Event()
    lines: list[str] = []

    def warning(text: str, *values: object) -> None:
        lines.append(text % values)
        said.set()

    monkeypatch.setattr(patience.LOG, "warning", warning)
    monkeypatch.setattr(patience, "PATIENCE_S", 0.01)
    with blamed("acme"):
        assert said.wait(60)
    assert lines == ["waiting for server extension acme, 0.01 s so far"]


@pytest.mark.parametrize("error", [ValueError("torn"), SystemExit(0)])
def test_one_that_fails_is_named(error: BaseException) -> None:
    with pytest.raises(PluginError, match="server extension acme is broken"), blamed("acme"):
        raise error
