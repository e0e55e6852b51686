"""A run's time, on a clock that the test sets."""

import pytest

from hotshoe_conformance import clock
from hotshoe_conformance.clock import Clock


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time, to be changed in place."""
    time = [100.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: time[0])
    return time


def test_parts_share_what_is_left(now: list[float]) -> None:
    limited = Clock(60, print)
    limited.share_of(3)
    now[0] += 20
    assert not limited.over
    now[0] += 1
    assert limited.over
    limited.share_of(2)  # 39 s are left
    assert not limited.over
    now[0] += 19
    assert not limited.over
    now[0] += 1
    assert limited.over
    limited.share_of(1)
    now[0] += 20
    assert limited.over
    limited.share_of(1)  # nothing is left, and nothing may begin
    now[0] += 1
    assert limited.over
    assert limited.reason == "the time limit of 60 s"


def test_something_is_late_where_no_time_is_left(now: list[float]) -> None:
    limited, left_out = Clock(60, print), dict[str, int]()
    limited.share_of(1)
    assert not limited.late(left_out, "runs") and not left_out
    now[0] += 61
    assert limited.late(left_out, "runs") and limited.late(left_out, "runs")
    assert left_out == {"runs: the time limit of 60 s": 2}


def test_without_a_limit_nothing_is_over(now: list[float]) -> None:
    free = Clock(None, print)
    free.share_of(2)
    now[0] += 1e9
    assert not free.over
    assert free.seconds == 1e9


def test_a_long_run_says_where_it_is_now_and_then(now: list[float]) -> None:
    said: list[str] = []
    talking = Clock(None, said.append)
    for second in range(25):
        now[0] = 100.0 + second
        talking.say(f"case {second}")
    assert said == ["10 s: case 10", "20 s: case 20"]
