"""Sends requests to a server over HTTP and stamps what comes back.

Nothing is read out of an answer while it arrives. A fault of the transport is a named failure of
its request, never an exception.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

from hotshoe.errors import ConfigError
from hotshoe_bench.prompts import Messages, Prompt
from hotshoe_bench.record import Exchange

DETAIL_CHARS = 200


@dataclass(frozen=True, slots=True)
class Target:
    """Which server is measured, and how it is spoken to.

    Attributes:
        base_url: Such as `http://127.0.0.1:8000`.
        endpoint: Such as `/v1/completions`.
        api_key: Sent as a bearer token.
        timeout_s: Longest time for one request.
    """

    base_url: str
    endpoint: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0


class Client:
    """A pool of connections to one server, as an asynchronous context."""

    def __init__(self, target: Target) -> None:
        self._target = target
        headers = {"Content-Type": "application/json"}
        if target.api_key is not None:
            headers["Authorization"] = f"Bearer {target.api_key}"
        self._session = aiohttp.ClientSession(
            base_url=target.base_url,
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=target.timeout_s),
            read_bufsize=2**20,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def models(self) -> dict[str, int | None]:
        """Ask the server for its models: the context of each in tokens, None if it names none.

        Raises:
            ConfigError: Nobody answers there, or with an error.
        """
        url = self._target.base_url
        try:
            async with self._session.get("/v1/models") as response:
                status, body = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConfigError(
                f"no server answers at {url} ({_detail(error)}); "
                "start one with `hotshoe serve`, or give --base-url"
            ) from None
        if status == 401:
            raise ConfigError(f"{url} wants a key (HTTP 401); give --api-key-file")
        if status == 503:  # it loads its model, sleeps, or has too much to do
            raise ConfigError(f"{url} is not ready (HTTP 503, {_reason(body)}); try again later")
        if status != 200:
            raise ConfigError(f"{url}/v1/models answers HTTP {status}; give --model")
        try:
            listed = json.loads(body)["data"]
            return {str(model["id"]): _context(model.get("max_model_len")) for model in listed}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigError(f"{url}/v1/models is no list of models; give --model") from None

    async def send(self, body: bytes, scheduled_s: float) -> Exchange:
        """Send one request and keep its answer; failures are told in the exchange."""
        exchange = Exchange(scheduled_s)
        exchange.sent_s = time.perf_counter()
        try:
            async with self._session.post(self._target.endpoint, data=body) as response:
                if response.status != 200:
                    exchange.failure = f"HTTP {response.status}"
                    exchange.detail = _reason(await response.content.read(2**16))
                else:
                    keep = exchange.pieces.append
                    async for piece in response.content.iter_any():
                        keep((time.perf_counter(), piece))
        except (TimeoutError, aiohttp.ServerTimeoutError):
            exchange.failure = "timeout"
            exchange.detail = f"after {self._target.timeout_s:g} s"
        except aiohttp.ClientConnectorError as error:
            exchange.failure, exchange.detail = "cannot connect", _detail(error)
        except (aiohttp.ClientError, OSError) as error:
            exchange.failure, exchange.detail = "connection lost", _detail(error)
        exchange.ended_s = time.perf_counter()
        return exchange


def request_body(
    endpoint: str, model: str, prompt: Prompt | Messages, max_tokens: int, extra: Mapping[str, Any]
) -> bytes:
    """Return the JSON text of one streaming request; `extra` goes over everything else."""
    if endpoint.endswith("/chat/completions"):
        question = [{"role": "user", "content": prompt}]
        asked: dict[str, Any] = {"messages": prompt if isinstance(prompt, list) else question}
    else:
        asked = {"prompt": prompt}
    common = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps({**asked, **common, **extra}).encode()


def _reason(body: bytes) -> str:
    """Return the message of an OpenAI error body, or the beginning of any other."""
    try:
        error = json.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace")
    return " ".join(str(text).split())[:DETAIL_CHARS]


def _context(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _detail(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error  # the text of the outer one repeats the address
    return (" ".join(str(error).split()) or type(error).__name__)[:DETAIL_CHARS]
