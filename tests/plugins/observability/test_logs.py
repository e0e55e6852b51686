"""Log lines as JSON."""

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from hotshoe_observability.logs import JsonFormatter, RequestLog, describe, log_as_json


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers, logger.level
    yield logger
    logger.handlers, logger.level = handlers, level


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line(root, capsys) -> None:
    log_as_json()
    logging.getLogger("some.part").warning('odd %s\n"value"', 5)
    [entry] = lines(capsys)
    assert entry["message"] == 'odd 5\n"value"'
    assert (entry["level"], entry["logger"]) == ("warning", "some.part")
    assert entry["time"].endswith("+00:00")


def test_loggers_with_their_own_handlers_are_taken_over(root, capsys) -> None:
    other = logging.getLogger("has.its.own")
    other.addHandler(logging.StreamHandler(sys.stderr))
    other.propagate = False
    log_as_json()
    other.error("once")
    assert [entry["message"] for entry in lines(capsys)] == ["once"]


def test_exceptions(root, capsys) -> None:
    log_as_json()
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("x").exception("failed")
    [entry] = lines(capsys)
    assert "ValueError: bad" in entry["exception"]


def test_requests(root, capsys, make_record) -> None:
    log_as_json()
    log = RequestLog()
    for record in (make_record(), make_record(error="deadline_exceeded")):
        log.begin(record)
        log.advance(record, 1, 0.0)
        log.end(record)
    good, bad = lines(capsys)
    assert good["request_id"] == "cmpl-1"
    assert (good["queue_ms"], good["ttft_ms"], good["total_ms"]) == (500, 3000, 8000)
    assert (good["level"], bad["level"]) == ("info", "warning")
    assert bad["error"] == "deadline_exceeded"


def test_requests_that_never_started(make_record) -> None:
    from hotshoe.types import RequestTiming

    found = describe(make_record(timing=RequestTiming()))
    assert found["ttft_ms"] is found["queue_ms"] is None


def test_values_that_json_does_not_know() -> None:
    record = logging.makeLogRecord({"msg": "m", "fields": {"path": object()}})
    assert "object object" in json.loads(JsonFormatter().format(record))["path"]
