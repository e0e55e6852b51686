"""What a request adds to the counts."""

import pytest

from hotshoe.types import RequestTiming, SamplingParams
from hotshoe_observability import table
from hotshoe_observability.counts import Counts
from hotshoe_observability.recorder import Recorder, measures


def sums(counts: Counts, *metrics: table.Metric) -> list[tuple[float, float]]:
    return [(sum(b), total) for *b, total in map(counts.histogram, metrics)]


def test_a_request(make_record) -> None:
    counts = Counts()
    recorder = Recorder(counts)
    record = make_record()
    recorder.begin(record)
    for now in (103.0, 103.5, 105.5, 107.0):
        recorder.advance(record, 1, now)
    recorder.advance(record, 0, 107.5)
    recorder.end(record)
    assert counts.total(table.REQUESTS, "/v1/completions") == 1
    found = sums(counts, table.TTFT, table.ITL, table.E2E)
    assert found == [(1, 3.0), (3, pytest.approx(4.0)), (1, 8.0)]
    assert not recorder._last_s


def test_tokens_that_come_together_are_all_counted(make_record) -> None:
    counts = Counts()
    recorder = Recorder(counts)
    record = make_record()
    recorder.advance(record, 3, 103.0)
    recorder.advance(record, 4, 105.0)
    recorder.advance(record, 1, 106.0)
    assert sums(counts, table.TTFT, table.ITL) == [(1, 3.0), (7, pytest.approx(3.0))]


def test_measures(make_record) -> None:
    found = {metric.name: number for metric, number in measures(make_record()).items()}
    assert found == {
        "hotshoe_request_seconds": 8.0,
        "hotshoe_request_prompt_tokens": 20,
        "hotshoe_request_computed_prompt_tokens": 4,
        "hotshoe_request_generated_tokens": 5,
        "hotshoe_request_longest_tokens": 5,
        "hotshoe_request_sequences": 1,
        "hotshoe_request_max_tokens": 9,
        "hotshoe_queue_seconds": 0.5,
        "hotshoe_prefill_seconds": 2.0,
        "hotshoe_inference_seconds": 6.0,
        "hotshoe_decode_seconds": 4.0,
        "hotshoe_time_per_output_token_seconds": 1.0,
    }


def test_the_longest_of_several_sequences_counts(make_record) -> None:
    assert measures(make_record(lengths={0: 2, 1: 3}))[table.LONGEST] == 3


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ({"params": SamplingParams(max_tokens=None)}, table.MAX_TOKENS),
        ({"params": SamplingParams(n=2)}, table.TPOT),
        ({"num_generated_tokens": 1}, table.TPOT),
        ({"timing": RequestTiming(100.0)}, table.QUEUE),
        ({"timing": RequestTiming(100.0, 101.0)}, table.PREFILL),
    ],
)
def test_measures_that_make_no_sense_are_left_out(make_record, values, missing) -> None:
    assert missing not in measures(make_record(**values))


def test_a_failed_request_counts_as_such_alone(make_record) -> None:
    counts = Counts()
    recorder = Recorder(counts)
    record = make_record(error="client_gone")
    recorder.begin(record)
    recorder.advance(record, 1, 103.0)
    recorder.end(record)
    assert counts.total(table.FAILED, "client_gone") == 1
    assert sums(counts, table.TTFT, table.E2E) == [(1, 3.0), (0, 0.0)]
    assert not recorder._last_s


def test_who_is_turned_away_is_counted_by_cause() -> None:
    counts = Counts()
    for cause in ("queue_full", "queue_full", "something new"):
        Recorder(counts).refuse("/v1/completions", cause)
    assert counts.total(table.REFUSED, "queue_full") == 2
    assert counts.total(table.REFUSED, table.OTHER) == 1
    assert counts.total(table.REQUESTS, "/v1/completions") == 0


def test_requests_do_not_mix(make_record) -> None:
    counts = Counts()
    recorder = Recorder(counts)
    one, two = make_record(), make_record()
    recorder.advance(one, 1, 103.0)
    recorder.advance(two, 1, 104.0)
    recorder.advance(one, 1, 106.0)
    assert sums(counts, table.TTFT, table.ITL) == [(2, 7.0), (1, 3.0)]
