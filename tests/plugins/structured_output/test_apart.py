"""Calls that cannot be stopped: waited for only so long, and none behind them is lost."""

from __future__ import annotations

import threading

import pytest

from hotshoe_structured_output.apart import Apart


@pytest.fixture
def gate():
    made = threading.Event()
    yield made
    made.set()


def test_results_come_in_order() -> None:
    apart = Apart(limit_s=60)
    assert apart([]) == []
    assert apart([lambda: 1, lambda: False, lambda: "x"]) == [1, False, "x"]
    assert apart([threading.current_thread]) != [threading.current_thread()]


def test_a_call_that_takes_too_long_is_left_behind(gate: threading.Event) -> None:
    apart = Apart(limit_s=0.05)
    slow = threading.Event()

    def late() -> str:
        gate.wait(60)
        slow.set()
        return "late"

    results = apart([lambda: 1, late, lambda: 3])
    assert results == [1, None, 3]
    gate.set()
    assert slow.wait(60)
    assert apart([lambda: 4]) == [4]
    assert results == [1, None, 3]


def test_few_calls_may_hold_a_thread(gate: threading.Event) -> None:
    apart = Apart(limit_s=0.05, max_held=2)
    ended = [threading.Event(), threading.Event()]

    def hold(event: threading.Event) -> None:
        gate.wait(60)
        event.set()

    assert apart([lambda: hold(ended[0]), lambda: 1]) == [None, 1]
    assert apart([lambda: hold(ended[1]), lambda: 1]) == [None, None]
    assert apart([lambda: 1]) == [None]
    gate.set()
    for event in ended:
        assert event.wait(60)
    for _ in range(1000):
        if apart([lambda: 1]) == [1]:
            return
        threading.Event().wait(0.01)
    raise AssertionError("no thread came free")


def test_errors_are_the_callers() -> None:
    def fail() -> None:
        raise KeyError("x")

    apart = Apart(limit_s=60)
    with pytest.raises(KeyError):
        apart([lambda: 1, fail])
    assert apart([lambda: 2]) == [2]
