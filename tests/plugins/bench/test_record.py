"""Times of one request follow from the moments its tokens arrived."""

import pytest

from hotshoe_bench.datasets import Query
from hotshoe_bench.record import Exchange, make_record
from hotshoe_bench.sse import Stream

QUERY = Query([1, 2, 3], 3, 4)


def stream(**values: object) -> Stream:
    defaults = {"token_times_s": [1.5, 1.7, 1.8, 2.1], "end_s": 2.1, "finish_reason": "length"}
    return Stream(**{**defaults, **values})


def test_definitions() -> None:
    exchange = Exchange(scheduled_s=0.9, sent_s=1.0, ended_s=2.2)
    record = make_record(QUERY, exchange, stream(), exact=True)
    assert record.failure is None
    assert record.lag_ms == pytest.approx(100)
    assert record.ttft_ms == pytest.approx(500)
    assert record.e2e_ms == pytest.approx(1100)
    assert record.tpot_ms == pytest.approx(200)
    assert record.itl_ms == pytest.approx([200, 100, 300])
    assert (record.input_len, record.output_len) == (3, 4)


def test_the_servers_counts_win() -> None:
    counted = stream(num_prompt_tokens=9, num_output_tokens=7)
    record = make_record(QUERY, Exchange(1.0, 1.0), counted, exact=False)
    assert (record.input_len, record.output_len) == (9, 7)
    assert record.tpot_ms == pytest.approx(100)  # several tokens came in one piece


def test_one_token_has_no_time_per_token() -> None:
    one = stream(token_times_s=[1.5], end_s=1.5, num_output_tokens=1)
    record = make_record(QUERY, Exchange(1.0, 1.0), one, exact=False)
    assert record.tpot_ms is None
    assert record.itl_ms == []
    assert record.e2e_ms == pytest.approx(500)


def test_an_answer_without_visible_tokens_starts_where_it_ends() -> None:
    hidden = stream(token_times_s=[], num_output_tokens=4)
    record = make_record(QUERY, Exchange(1.0, 1.0), hidden, exact=True)
    assert record.ttft_ms == record.e2e_ms == pytest.approx(1100)


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"error": "x"}, "error in stream"),
        ({"finish_reason": None}, "stream ended early"),
        ({"finish_reason": "abort"}, "request ended by server"),
        ({"token_times_s": []}, "empty answer"),
        ({"num_output_tokens": 5}, "wrong length"),
    ],
)
def test_failures_have_no_times(values: dict, cause: str) -> None:
    record = make_record(QUERY, Exchange(1.0, 1.0), stream(**values), exact=True)
    assert record.failure == cause
    assert record.ttft_ms is record.e2e_ms is None


def test_the_transports_failure_goes_first() -> None:
    exchange = Exchange(1.0, 1.0, failure="timeout", detail="after 1 s")
    record = make_record(QUERY, exchange, stream(error="x"), exact=True)
    assert (record.failure, record.detail) == ("timeout", "after 1 s")
