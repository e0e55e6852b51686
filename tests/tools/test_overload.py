"""Overload: what counts as lost, and the real thing on the bundled model."""

import asyncio

import overload
import pytest
from tests.plugins.served import serve

from hotshoe_bench.record import Record

ARGS = overload.parse([])


def record(ended: float, failure: str | None = None, ttft_ms: float = 5.0) -> Record:
    times = {} if failure else {"ttft_ms": ttft_ms, "e2e_ms": 10.0, "tpot_ms": 1.0}
    return Record(8, 4, ended - 0.01, ended, 0.0, failure=failure, **times)


def test_goodput_leaves_out_beginning_and_end() -> None:
    records = [record(0.1 * i) for i in range(1, 101)]
    assert overload.goodput(records, ARGS, 2.0) == pytest.approx(10, rel=0.05)
    late = [record(0.1 * i, ttft_ms=1e6) for i in range(1, 101)]
    assert overload.goodput(late, ARGS, 2.0) == 0


@pytest.mark.parametrize(
    ("failure", "passed"), [(None, True), ("HTTP 429", True), ("connection lost", False)]
)
def test_refused_in_words_is_not_lost(failure: str | None, passed: bool) -> None:
    stormy = [record(1.0), record(2.0, failure)]
    found = overload.report(ARGS, [record(1.0)], stormy, 10.0, 9.8)
    assert found["passed"] is passed
    assert bool(found["lost"]) is not passed


def test_too_little_goodput_fails() -> None:
    assert not overload.report(ARGS, [record(1.0)], [record(1.0)], 10.0, 9.0)["passed"]


@pytest.mark.slow
def test_ten_times_what_it_can_do() -> None:
    """Nothing is lost. The share of goodput is judged by the tool, on a machine of its own."""
    words = ("--platform", "cpu", "--max-num-seqs", "8", "--max-num-queued-reqs", "8")
    args = overload.parse(["--seconds", "8", "--concurrency", "16", "--output-len", "64"])
    with serve("demo", *words) as served:
        args.base_url = served.url
        found = asyncio.run(overload.run(args))
    assert found["lost"] == {}
    assert found["failures"]["HTTP 429"] > 0
    assert found["share_of_capacity"] > 0.5
