"""Who is turned away by the head alone: nobody whom the application would not refuse alike."""

import json

import pytest

from hotshoe.errors import EngineDeadError, QueueFullError
from hotshoe_server.endpoints import ENDPOINTS
from hotshoe_server.extensions import Parts

KEY = "a-good-key"
GENERATING = [e.path for e in ENDPOINTS if e.generates and e.error_body is None]
HOST = (b"host", b"127.0.0.1:8000")


class Counter:
    """Counts those that were refused."""

    def __init__(self) -> None:
        self.refused: list[tuple[str, str]] = []

    def refuse(self, endpoint: str, error: str) -> None:
        self.refused.append((endpoint, error))


def ask(http, *headers: tuple[bytes, bytes], target: str = "/v1/completions"):
    return http.state.turn_away(target.encode(), [HOST, *headers])


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (QueueFullError("too many requests wait", 3.0), 429, "queue_full", "3"),
        (EngineDeadError("died in /secret/path"), 503, "engine_dead", "5"),
    ],
)
def test_what_is_shut_is_told_in_the_words_of_the_long_way(
    http, engine, path: str, error: Exception, status: int, code: str, retry_after: str
) -> None:
    counter = Counter()
    http.state.observers.append(counter)
    assert ask(http, target=path) is None
    engine.error = error
    refusal = ask(http, target=path)
    assert counter.refused == [(path, code)]
    long_way = http.post(path)
    assert refusal.status == long_way.status_code == status
    assert json.loads(refusal.body()) == long_way.json()
    assert refusal.headers["retry-after"] == long_way.headers["retry-after"] == retry_after


@pytest.mark.parametrize(
    "target", ["/", "/load", "/v1/models", "/v1/completions?x", "/v1/completions/", "/%76"]
)
def test_other_targets_go_on(http, engine, target: str) -> None:
    engine.error = QueueFullError("too many requests wait", 3.0)
    assert ask(http, target=target) is None


@pytest.mark.parametrize("header", [(b"origin", b"http://page"), (b"expect", b"100-continue")])
def test_so_do_requests_that_get_more_than_a_refusal(http, engine, header) -> None:
    engine.error = QueueFullError("too many requests wait", 3.0)
    assert ask(http, header) is None


def test_so_does_who_has_no_key_or_another_name_for_this_host(open_http, engine) -> None:
    http = open_http(api_key=[KEY])
    engine.error = QueueFullError("too many requests wait", 3.0)
    assert ask(http) is None
    assert ask(http, (b"authorization", b"Bearer another-key")) is None
    assert ask(http, (b"authorization", f"Bearer {KEY}".encode())) is not None
    evil = (b"host", b"evil.example")
    assert http.state.turn_away(b"/v1/completions", [evil]) is None


def test_so_do_all_while_the_server_ends(http, engine) -> None:
    engine.error = QueueFullError("too many requests wait", 3.0)
    http.state.draining = True
    assert ask(http) is None


def test_who_asked_to_hear_of_every_request_does(open_http) -> None:
    assert open_http().state.turn_away is not None
    assert open_http(access_log=True).state.turn_away is None
    assert open_http([Parts(middleware=[lambda app: app])]).state.turn_away is None
