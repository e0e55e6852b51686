"""One endpoint as an ASGI application: body in, answer or error out, and nobody left behind.

While the endpoint works, or its answer streams, the connection is watched: when the client goes,
the task is cancelled, which aborts its engine requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
import typing
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotshoe_server.call import Call
from hotshoe_server.errors import ApiError, as_api_error
from hotshoe_server.extensions import Endpoint
from hotshoe_server.guard import public_paths
from hotshoe_server.load_header import WANTED, add_load
from hotshoe_server.state import ServerState

_log = logging.getLogger(__name__)
_encoder = msgspec.json.Encoder()


class EndpointApp:
    """Answers the requests of one route.

    Args:
        server: What endpoints share.
        endpoint: Its handler's second parameter, if there is one, says how the body is read.
    """

    def __init__(self, server: ServerState, endpoint: Endpoint) -> None:
        self._server = server
        self.endpoint = endpoint
        self._body_type = body_type(endpoint)
        self._public = endpoint.path in public_paths(server.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        call = Call(scope, receive, self._server, self.endpoint.path)
        try:
            await self._serve(call, send)
        finally:
            call.release()

    async def _serve(self, call: Call, send: Send) -> None:
        try:
            self._check_access(call)
            self._check_room()
            arguments = []
            if self._body_type is not None:
                fields = call.query_params if self.endpoint.admin else None
                arguments.append(await call.read(self._body_type, self.endpoint.any_type, fields))
                self._check_room()  # reading may have taken long
        except ClientDisconnect:
            return
        except Exception as error:
            await self._send(call, self._failed(error), send)
            return
        await self._watched(call, arguments, send)

    def _check_access(self, call: Call) -> None:
        """Refuse who may not come here, however the request found its way.

        Raises:
            ApiError: No key, not an admin, or an admin whose parameters would be overlooked.
        """
        if call.caller is None and not self._public:
            raise ApiError("invalid_api_key")
        if self.endpoint.admin and not (call.caller and call.caller.admin):
            raise ApiError("admin_only")
        if self.endpoint.admin and self._body_type is None:
            for name in call.query_params:
                if name != "model":  # ignored, it would seem to have had its effect
                    raise ApiError("unknown_parameter", f"unknown parameter: {name}", name)

    def _check_room(self) -> None:
        """Turn a request away before work is done for it that somebody else waits for.

        Raises:
            ApiError: The server is shutting down.
            QueueFullError: Too many requests wait.
            EngineDeadError: The engine has stopped.
        """
        if not self.endpoint.generates:
            return
        try:
            if self._server.draining:
                raise ApiError("shutting_down", retry_after_s=5)
            self._server.check_queue()
        except Exception as error:
            for observer in self._server.observers:
                observer.refuse(self.endpoint.path, as_api_error(error).code)
            raise

    async def _watched(self, call: Call, arguments: list[Any], send: Send) -> None:
        """Run the handler and send its answer, unless the client goes first."""
        task = asyncio.current_task()
        assert task is not None
        gone = False

        async def watch() -> None:
            nonlocal gone
            while (await call.receive())["type"] != "http.disconnect":
                pass
            gone = True
            task.cancel()

        counts = self.endpoint.method != "GET"
        self._server.num_open += counts
        watcher = asyncio.create_task(watch())
        try:
            await self._send(call, await self._answer(call, arguments), send)
        except asyncio.CancelledError:
            if not gone or task.uncancel():
                raise
        finally:
            self._server.num_open -= counts
            watcher.cancel()

    async def _answer(self, call: Call, arguments: list[Any]) -> Response:
        try:
            response = as_response(await self.endpoint.handler(call, *arguments))
            if self.endpoint.generates and WANTED in call.headers:
                await add_load(call, response)
            return response
        except Exception as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> Response:
        return answer_error(error, self.endpoint.error_body)

    async def _send(self, call: Call, response: Response, send: Send) -> None:
        response.raw_headers.append((b"x-request-id", call.id.encode()))
        try:
            await response(call.scope, call.receive, send)
        finally:
            took_s = time.monotonic() - call.arrival_s
            for hear in self._server.answered:
                hear(self.endpoint.method, self.endpoint.path, response.status_code, took_s)


def body_type(endpoint: Endpoint) -> type[Any] | None:
    """Return the model of an endpoint's body, None when it reads none."""
    hints = typing.get_type_hints(endpoint.handler)
    found: type[Any] | None = hints.get("body")
    return found


def as_response(value: Any) -> Response:
    """Return a response as it is, and anything else as JSON."""
    if isinstance(value, Response):
        return value
    return Response(_encoder.encode(value), media_type="application/json")


def answer_error(error: Exception, body: Callable[[ApiError], Any] | None = None) -> Response:
    """Return the answer to an exception; unforeseen ones are logged, as others can fill a disk.

    Args:
        error: What went wrong.
        body: As `Endpoint.error_body`.
    """
    found = as_api_error(error)
    if found.code == "internal_error":
        _log.error("a request failed", exc_info=error)
    return error_response(found, body)


def error_response(error: ApiError, body: Callable[[ApiError], Any] | None = None) -> Response:
    """Return an error as a response, in OpenAI's form or another."""
    headers = dict(error.headers)
    if error.code in ("body_too_large", "read_timeout"):
        headers["connection"] = "close"  # the rest of the body is not read
    written = error.body() if body is None else _encoder.encode(body(error))
    return Response(written, error.status, headers, media_type="application/json")
