"""What goes down a second queue begins behind the first, and the first waits where it is asked."""

import contextlib
import types
from collections.abc import Iterator

import pytest
import torch
from tests.platforms.triton.conftest import device_facts

from hotshoe_triton.beside import Beside


def test_a_launch_is_behind_what_was_before_and_waited_for_once_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    class Stream:
        def __init__(self, name: str = "second", priority: int = 0) -> None:
            self.name, self.priority = name, priority

        def wait_stream(self, other: "Stream") -> None:
            calls.append(f"{self.name} waits for {other.name}")

        def wait_event(self, event: str) -> None:
            calls.append(f"{self.name} waits for {event}")

        def record_event(self) -> str:
            calls.append(f"{self.name} records")
            return "the end"

    @contextlib.contextmanager
    def entered(queue: Stream) -> Iterator[None]:
        assert queue.priority < 0
        calls.append(f"in {queue.name}")
        yield
        calls.append("out")

    first = Stream("first")
    module = types.SimpleNamespace(Stream=Stream, stream=entered, current_stream=lambda: first)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    end = Beside(device_facts("sm_90"))(lambda: calls.append("launch"))
    launched = [
        *("second waits for first", "in second", "launch", "second records", "out"),
    ]
    assert calls == launched
    end()
    assert calls == [*launched, "first waits for the end"]
