"""What a load balancer is told in a header."""

import json

import pytest

from hotshoe.errors import EngineDeadError

WANTED, GIVEN = "endpoint-load-metrics-format", "endpoint-load-metrics"
BODY = {"prompt": "One day", "max_tokens": 2}


def ask(http, form: str | None, path: str = "/v1/completions", body=None):
    headers = {"content-type": "application/json"} | ({WANTED: form} if form else {})
    response = http("POST", path, content=json.dumps(body or BODY).encode(), headers=headers)
    assert response.status_code == 200, response.text
    return response.headers.get(GIVEN)


@pytest.mark.parametrize("stream", [False, True])
def test_the_forms(http, stream: bool) -> None:
    body = {**BODY, "stream": stream}
    kind, _, rest = ask(http, "JSON", body=body).partition(" ")
    numbers = {"kv_cache_usage_perc": 0.25, "num_requests_running": 1, "num_requests_waiting": 2}
    assert (kind, json.loads(rest)) == ("JSON", {"named_metrics": numbers})
    assert ask(http, "text", body=body) == "TEXT " + ", ".join(
        f"named_metrics.{name}={value}" for name, value in numbers.items()
    )


def test_nobody_is_told_who_does_not_ask(http) -> None:
    assert ask(http, None) is None
    assert ask(http, "BIN") is None
    response = http("GET", "/v1/models", headers={WANTED: "JSON"})
    assert response.status_code == 200 and GIVEN not in response.headers


def test_an_engine_that_has_died_since_costs_no_answer(http, engine, monkeypatch) -> None:
    async def stats():
        raise EngineDeadError("gone")

    monkeypatch.setattr(engine, "stats", stats)
    assert ask(http, "JSON") is None
