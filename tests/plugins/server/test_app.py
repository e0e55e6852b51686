"""Extensions: what they add, where it runs, what they hear."""

from contextlib import asynccontextmanager

import pytest

from hotshoe.errors import PluginError, QueueFullError
from hotshoe_server.extensions import Endpoint, Parts

KEY = {"authorization": "Bearer user-key-1"}


class Observer:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple] = []

    def refuse(self, endpoint: str, error: str) -> None:
        self.heard.append(("refuse", endpoint, error))

    def begin(self, record) -> None:
        self.heard.append(("begin", record.request_id))

    def advance(self, record, num_tokens: int, now_s: float) -> None:
        self.heard.append(("advance", num_tokens))

    def end(self, record) -> None:
        self.record = record
        self.heard.append(("end", record.error))


async def hello(call) -> dict[str, str]:
    return {"hello": call.path}


class Stamp:
    """Middleware that stamps every response."""

    def __init__(self, app, name: str, seen: list[str]) -> None:
        self.app, self.name, self.seen = app, name, seen

    async def __call__(self, scope, receive, send) -> None:
        self.seen.append(self.name)
        await self.app(scope, receive, send)


def test_endpoints_of_extensions_are_guarded(open_http) -> None:
    parts = Parts(endpoints=[Endpoint("GET", "/hello", hello, "Hello")])
    http = open_http([parts], api_key=["user-key-1"])
    assert http.get("/hello").status_code == 401
    assert http("GET", "/hello", headers=KEY).json() == {"hello": "/hello"}
    assert "/hello" in http("GET", "/openapi.json", headers=KEY).json()["paths"]


def test_middleware_runs_in_order_behind_the_guard(open_http) -> None:
    seen: list[str] = []
    first = Parts(middleware=[lambda app: Stamp(app, "a", seen), lambda app: Stamp(app, "b", seen)])
    second = Parts(middleware=[lambda app: Stamp(app, "c", seen)])
    http = open_http([first, second], api_key=["user-key-1"])
    assert http.get("/version").status_code == 401
    assert seen == []
    assert http("GET", "/version", headers=KEY).status_code == 200
    assert seen == ["a", "b", "c"]


def test_observers_hear_of_the_tokens_of_each_sequence(open_http) -> None:
    observer = Observer()
    http = open_http([Parts(observers=[observer])])
    http.post("/v1/completions", prompt="Say", n=2)
    assert observer.record.lengths == {0: 3, 1: 3}
    assert observer.record.num_generated_tokens == 6


def test_observers_hear_of_every_request(open_http, engine) -> None:
    observer = Observer()
    http = open_http([Parts(observers=[observer])])
    http.post("/v1/completions", prompt="Say")
    names = [event[0] for event in observer.heard]
    assert (names[0], names[-1]) == ("begin", "end")
    assert sum(event[1] for event in observer.heard if event[0] == "advance") == 3
    record = observer.record
    assert record.endpoint == "/v1/completions" and record.finish_reasons == ["stop"]
    assert record.num_generated_tokens == 3 and record.num_prompt_tokens == 1
    assert record.error is None and record.end_s >= record.arrival_s
    engine.fail_after = 0
    http.post("/v1/completions", prompt="Say")
    assert observer.heard[-1] == ("end", "generation_failed")


def test_every_answer_is_heard_of_with_its_route(open_http, engine) -> None:
    heard: list[tuple[str, str, int, float]] = []
    http = open_http([Parts(answered=[lambda *answer: heard.append(answer)])])
    http.post("/v1/completions", prompt="hi")
    http.post("/v1/completions", prompt=5)
    http.events("/v1/completions", prompt="hi")
    http.get("/v1/models/nothing")
    engine.error = QueueFullError("too many requests wait", 3.0)
    assert http.state.turn_away(b"/v1/completions", [(b"host", b"127.0.0.1:8000")]) is not None
    place = ("POST", "/v1/completions")
    assert all(took_s >= 0 for *_, took_s in heard)
    assert [answer[:3] for answer in heard] == [
        *((*place, status) for status in (200, 400, 200)),
        ("GET", "/v1/models/{model:path}", 404),
        (*place, 429),
    ]


def test_observers_hear_of_who_is_turned_away(open_http, engine) -> None:
    observer = Observer()
    http = open_http([Parts(observers=[observer])])
    engine.error = QueueFullError("too many requests wait", 2.0)
    assert http.post("/v1/completions", prompt="Say").status_code == 429
    http.state.draining = True
    assert http.post("/v1/responses", input="Say").status_code == 503
    assert observer.heard == [
        ("refuse", "/v1/completions", "queue_full"),
        ("refuse", "/v1/responses", "shutting_down"),
    ]


def test_lifespans_are_the_callers(open_http) -> None:
    @asynccontextmanager
    async def never():
        raise AssertionError
        yield

    assert open_http([Parts(lifespan=never)]).get("/live").status_code == 200


def test_unknown_urls_and_methods(http) -> None:
    assert http.get("/nothing").json()["error"]["code"] == "not_found"
    response = http.get("/v1/completions")
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


def no_middleware(app) -> None:
    raise RuntimeError("no wrapping")


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        (Parts(middleware=[no_middleware]), "RuntimeError: no wrapping"),
        (Parts(endpoints=[Endpoint("GET", "hello", hello, "Hello")]), "AssertionError"),
        (Parts(endpoints=["/hello"]), "AttributeError"),
        (Parts(observers=None), "TypeError"),
    ],
    ids=["middleware", "path", "endpoint", "observers"],
)
def test_who_adds_what_cannot_be_used_is_named(open_http, parts: Parts, cause: str) -> None:
    with pytest.raises(PluginError, match=f"extension 1 is broken: {cause}"):
        open_http([Parts(), parts])
