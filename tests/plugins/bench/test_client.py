"""Requests as they are sent, and the transport's failures."""

import asyncio
import json

import pytest

from hotshoe.errors import ConfigError
from hotshoe_bench.client import Client, Target, request_body
from hotshoe_bench.record import Exchange


def send(url: str, body: bytes, timeout_s: float = 60.0) -> Exchange:
    async def run() -> Exchange:
        async with Client(Target(url, "/v1/completions", None, timeout_s)) as client:
            return await client.send(body, 0.0)

    return asyncio.run(run())


def test_bodies() -> None:
    body = json.loads(request_body("/v1/completions", "m", [1, 2], 5, {"temperature": 1}))
    assert body["prompt"] == [1, 2]
    assert body["temperature"] == 1
    body = json.loads(request_body("/v1/chat/completions", "m", "hi", 5, {}))
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert "prompt" not in body


def test_pieces_are_stamped_as_they_arrive(server) -> None:
    server.first_s, server.gap_s = 0.1, 0.05
    exchange = send(server.url, request_body("/v1/completions", "m", [1], 3, {}))
    assert exchange.failure is None
    moments = [moment - exchange.sent_s for moment, _ in exchange.pieces]
    assert moments[0] >= 0.1
    assert moments[-1] >= 0.2
    assert b"".join(piece for _, piece in exchange.pieces).endswith(b"[DONE]\n\n")


def test_an_error_that_is_not_json(server) -> None:
    server.fault = "crash"
    exchange = send(server.url, b"{}")
    assert (exchange.failure, exchange.detail) == ("HTTP 500", "Internal Server Error")
    assert exchange.pieces == []


def test_the_key_is_not_shown() -> None:
    assert "sesame" not in repr(Target("http://x", "/", "sesame"))


@pytest.mark.parametrize("models", [{"data": 5}, {}, [], {"data": ["a"]}])
def test_a_list_of_models_that_is_none(server, models: object) -> None:
    async def ask() -> dict[str, int | None]:
        async with Client(Target(server.url, "/v1/completions")) as client:
            return await client.models()

    server.models_body = models
    with pytest.raises(ConfigError, match="give --model"):
        asyncio.run(ask())


def test_a_server_that_is_not_ready(server) -> None:
    async def ask() -> dict[str, int | None]:
        async with Client(Target(server.url, "/v1/completions")) as client:
            return await client.models()

    server.models_status = 503
    server.models_body = {"error": {"message": "the engine is starting"}}
    with pytest.raises(ConfigError, match=r"not ready .*the engine is starting.*try again"):
        asyncio.run(ask())
