"""Shares of the device's limits."""

import pytest

from hotshoe.slots import Candidate, accept, refuse
from hotshoe.slots.reference.norm import build_norm
from hotshoe_conformance import measure
from hotshoe_conformance.cases import SUITES
from hotshoe_conformance.cases.base import HOST
from hotshoe_conformance.measure import Limits, Timing, timed_setups, timings
from hotshoe_conformance.place import Place

LIMITS = Limits(bandwidth=1e9, arithmetic=1e12)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure on where the machine stands still for a moment: that is what medians are for."""
    monkeypatch.setattr(measure, "PATIENCE_S", 1e9)


def test_the_nearer_limit_counts() -> None:
    moving = LIMITS.share(Timing("", "", 2e-3, bytes=10**6, operations=10**6))
    assert (moving.limit, moving.share) == ("bandwidth", pytest.approx(0.5))
    computing = LIMITS.share(Timing("", "", 4e-3, bytes=1, operations=10**9))
    assert (computing.limit, computing.share) == ("arithmetic", pytest.approx(0.25))
    assert computing.microseconds == pytest.approx(4000)


def test_whoever_is_faster_raises_the_limit() -> None:
    fast = Timing("", "", 5e-4, bytes=1, operations=10**9)
    raised = LIMITS.raised_by([fast])
    assert raised.arithmetic == pytest.approx(2e12)
    assert raised.bandwidth == LIMITS.bandwidth
    assert raised.share(fast).share == pytest.approx(1)


def test_a_device_and_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(measure, "MATRIX_SIZES", (64,))
    limits = Limits.of("cpu", 1)
    assert limits.bandwidth > 1e7
    assert limits.arithmetic > 1e7
    suite = SUITES["rms_norm"]
    candidate = Candidate("rms_norm", "mine", lambda s, f: accept(1), build_norm)
    found = list(timings(suite, suite.bench(())[:2], candidate, HOST, 1))
    assert [timing.shape for timing in found] == ["count=1", "count=1024"]
    assert found[1].bytes == 2 * 1024 * 4096 * 4
    assert all(timing.seconds > 0 for timing in found)


def test_a_candidate_of_one_size_is_timed_on_its_own_cases() -> None:
    suite = SUITES["rms_norm"]

    def judge(spec, facts):
        return accept(1) if spec.hidden_size == 37 and not spec.quant else refuse("37 alone")

    narrow = Candidate("rms_norm", "mine", judge, build_norm)
    [setup] = timed_setups(suite, (), narrow, HOST)
    assert setup.spec.hidden_size == 37
    never = Candidate("rms_norm", "mine", lambda s, f: refuse("never"), build_norm)
    assert timed_setups(suite, (), never, HOST) == ()
    every = Candidate("rms_norm", "mine", lambda s, f: accept(1), build_norm)
    assert timed_setups(suite, (), every, HOST) == suite.bench(())


def test_time_is_the_median_of_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MIN_SECONDS", 0.01)
    calls = []
    assert measure.seconds_per_call(lambda: calls.append(1), Place("cpu")) < 0.01
    assert len(calls) > measure.MIN_CALLS


@pytest.mark.parametrize("slot", SUITES)
def test_every_bench_has_a_cost(slot: str) -> None:
    from hotshoe_conformance.cases.base import Case

    suite = SUITES[slot]
    for index, setup in enumerate(suite.bench(())[:1]):
        cost = Case(slot, index, 1, setup).problem(suite).cost()
        assert cost.bytes > 0
