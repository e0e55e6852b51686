"""Log lines, for people and as JSON."""

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from hotshoe_server.config import ServerConfig
from hotshoe_server.logs import ACCESS, COMMAND, JsonFormatter, start_logs

JSON = ServerConfig(log_format="json", access_log=True)


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Put back afterwards what this process logs where."""
    found = [logging.getLogger(), ACCESS, COMMAND]
    before = [(one, one.handlers, one.level, one.propagate) for one in found]
    yield
    for one, handlers, level, propagate in before:
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_what_the_command_says(capsys) -> None:
    start_logs(ServerConfig())("ready: 100% a")
    assert capsys.readouterr().err == "ready: 100% a\n"
    start_logs(JSON)("ready: 100% a")
    [entry] = lines(capsys)
    assert (entry["message"], entry["level"]) == ("ready: 100% a", "info")
    assert entry["logger"] == "hotshoe.serve"


def test_the_access_log(capsys) -> None:
    for _ in range(2):
        start_logs(ServerConfig(access_log=True))
    ACCESS.info("%s - %d", "GET /", 200)
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(" GET / - 200")
    start_logs(JSON)
    ACCESS.info("%s - %d", "GET /", 200)
    assert [entry["message"] for entry in lines(capsys)] == ["GET / - 200"]


def test_a_line(capsys) -> None:
    start_logs(JSON)
    logging.getLogger("some.part").warning('odd %s\n"value"', 5)
    [entry] = lines(capsys)
    assert entry["message"] == 'odd 5\n"value"'
    assert (entry["level"], entry["logger"]) == ("warning", "some.part")
    assert entry["time"].endswith("+00:00")


def test_loggers_with_their_own_handlers_are_taken_over(capsys) -> None:
    other = logging.getLogger("has.its.own")
    other.addHandler(logging.StreamHandler(sys.stderr))
    other.propagate = False
    start_logs(JSON)
    other.error("once")
    assert [entry["message"] for entry in lines(capsys)] == ["once"]


def test_exceptions(capsys) -> None:
    start_logs(JSON)
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("x").exception("failed")
    [entry] = lines(capsys)
    assert "ValueError: bad" in entry["exception"]


def test_values_that_json_does_not_know() -> None:
    record = logging.makeLogRecord({"msg": "m", "fields": {"path": object()}})
    assert "object object" in json.loads(JsonFormatter().format(record))["path"]
