"""Numbers over many records."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.errors import ConfigError
from hotshoe_bench.record import Record
from hotshoe_bench.summary import failures, meets, parse_objectives, percentile, spread, summarize

FLOATS = st.floats(0, 1e6)


def record(sent: float = 0.0, ended: float = 1.0, **values: object) -> Record:
    defaults = {"ttft_ms": 100.0, "e2e_ms": 1000.0, "tpot_ms": 10.0, "itl_ms": [10.0, 12.0]}
    defaults |= {"input_len": 8, "output_len": 4, "lag_ms": 1.0}
    return Record(sent_s=sent, ended_s=ended, **{**defaults, **values})


def failed(cause: str, detail: str) -> Record:
    none = {"ttft_ms": None, "e2e_ms": None, "tpot_ms": None, "itl_ms": []}
    return record(failure=cause, detail=detail, **none)


@given(st.lists(FLOATS, min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert math.isclose(percentile(sorted(values), percent), expected, rel_tol=1e-9, abs_tol=1e-9)


def test_throughput_counts_complete_answers_over_the_whole_time() -> None:
    records = [record(0.0, 1.0), record(1.0, 4.0), failed("HTTP 429", "busy")]
    numbers = summarize(records, {})
    assert numbers["duration_s"] == 4
    assert (numbers["num_completed"], numbers["num_failed"]) == (2, 1)
    assert numbers["requests_per_s"] == 0.5
    assert numbers["output_tokens_per_s"] == 2
    assert numbers["tokens_per_s"] == 6
    assert numbers["itl_ms_mean"] == 11
    assert "goodput_share" not in numbers


def test_all_failed() -> None:
    numbers = summarize([failed("timeout", "")], {"ttft": 1.0})
    assert numbers["requests_per_s"] == numbers["goodput_share"] == 0
    assert "ttft_ms_mean" not in numbers


def test_goodput_counts_failures_as_missed() -> None:
    records = [record(), record(ttft_ms=700.0), failed("timeout", "")]
    numbers = summarize(records, {"ttft": 500.0})
    assert numbers["goodput_share"] == pytest.approx(1 / 3)
    assert numbers["goodput_requests_per_s"] == 1


def test_every_objective_must_be_met() -> None:
    assert meets(record(), {"ttft": 100.0, "tpot": 10.0})
    assert not meets(record(), {"ttft": 100.0, "tpot": 9.9})
    assert meets(record(tpot_ms=None), {"tpot": 1.0})


def test_spread_of_nothing() -> None:
    assert spread("x", []) == {}


def test_causes_come_with_their_first_example() -> None:
    records = [record(), failed("a", "one"), failed("b", "two"), failed("b", "three")]
    found = failures(records)
    assert list(found) == ["b", "a"]
    assert (found["b"].count, found["b"].example) == (2, "two")


def test_objectives() -> None:
    assert parse_objectives(["ttft:500", "e2e:1.5e3"]) == {"ttft": 500.0, "e2e": 1500.0}


@pytest.mark.parametrize(
    "word", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:nan", "ttft:inf", "a:1"]
)
def test_bad_objectives(word: str) -> None:
    with pytest.raises(ConfigError, match="--goodput"):
        parse_objectives([word])
