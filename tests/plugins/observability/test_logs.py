"""A log line for every request."""

import logging

from hotshoe_observability.logs import RequestLog, describe


def test_requests(caplog, make_record) -> None:
    log = RequestLog()
    for record in (make_record(), make_record(error="deadline_exceeded")):
        log.begin(record)
        log.advance(record, 1, 0.0)
        log.end(record)
    good, bad = (record.fields for record in caplog.records)
    assert good["request_id"] == "cmpl-1"
    assert (good["queue_ms"], good["ttft_ms"], good["total_ms"]) == (500, 3000, 8000)
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO, logging.WARNING]
    assert bad["error"] == "deadline_exceeded"


def test_requests_that_never_started(make_record) -> None:
    from hotshoe.types import RequestTiming

    found = describe(make_record(timing=RequestTiming()))
    assert found["ttft_ms"] is found["queue_ms"] is None
