"""Who hangs is named; who is quick is not."""

import threading

import pytest

from hotshoe import patience


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], threading.Event]:
    lines: list[str] = []
    event = threading.Event()

    def warning(text: str, *values: object) -> None:
        lines.append(text % values)
        event.set()

    monkeypatch.setattr(patience.LOG, "warning", warning)
    return lines, event


def test_who_hangs_is_named_meanwhile(said, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, event = said
    monkeypatch.setattr(patience, "PATIENCE_S", 0.01)
    with patience.patience("platform acme"):
        assert event.wait(60)
    assert lines == ["waiting for platform acme, 0.01 s so far"]


def test_nobody_else_is(said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 3600.0)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), patience.patience("platform acme"):
        raise ZeroDivisionError
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(60)
    assert threading.active_count() == before
    assert said[0] == []
