"""Times of a stream, on a clock that the test turns."""

from types import SimpleNamespace

import pytest

from hotshoe.cli import stopwatch
from hotshoe.cli.stopwatch import Stopwatch


def updates(counts: list[int]):
    return [SimpleNamespace(sequences=[SimpleNamespace(new_token_ids=[0] * n)]) for n in counts]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    """A stopwatch that reads 0, 1, 2, ... seconds."""
    ticks = iter(range(100))
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(ticks))
    return Stopwatch()


def test_times(clock: Stopwatch) -> None:
    stream = updates([0, 2, 1, 1])
    assert list(clock.watch(stream)) == stream
    assert (clock.first_s, clock.total_s, clock.num_tokens) == (2, 4, 4)
    assert clock.per_token_ms == 1000.0
    assert clock.summary() == "4 tokens in 4.00 s: the first after 2000 ms, then 1000.0 ms each"


def test_one_token_has_no_rate(clock: Stopwatch) -> None:
    list(clock.watch(updates([1])))
    assert clock.per_token_ms is None
    assert clock.summary() == "1 token in 1.00 s: the first after 1000 ms"


def test_no_token(clock: Stopwatch) -> None:
    list(clock.watch(updates([0])))
    assert clock.summary() == "no token"
