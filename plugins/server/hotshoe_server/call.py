"""One HTTP request on its way through an endpoint: its body, its caller, its connection."""

from __future__ import annotations

import asyncio
import re
import secrets
import time

from pydantic import ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Receive, Scope

from hotshoe_server.errors import ApiError, from_validation
from hotshoe_server.guard import CALLER, Caller
from hotshoe_server.schemas.base import Schema
from hotshoe_server.schemas.fields import Generation
from hotshoe_server.state import Served, ServerState
from hotshoe_server.unknown_fields import without_unknown
from hotshoe_server.url_fields import with_fields
from hotshoe_server.validation import Body, check_counts, validated

#: Ids that clients may give their requests.
ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
#: Of the bodies of all requests under way.
MAX_HELD_BYTES = 2**29
#: What is read at once; a longer body is counted first, and both in a thread.
SMALL_BODY_BYTES = 2**16

#: Stands for a body that was not read.
NO_BODY = Schema()


class Call(Request):
    """A request and what the server knows of it.

    Attributes:
        server: What all endpoints share.
        served: The model that is asked; the first until `choose` was called.
        id: The client's header x-request-id where it is an `ID`, else a fresh one; the answer's
            header x-request-id, and part of its id. Two requests may have the same.
        arrival_s: `time.monotonic()` when the body had been read.
        path: The route's, one of a closed set.
        caller: What the guard found; None without a valid key.
        body_read: The body as a model; one without wishes before it was read.
        num_body_bytes: How much of the body has come; counted in `server.body_bytes`.
    """

    def __init__(self, scope: Scope, receive: Receive, server: ServerState, path: str) -> None:
        super().__init__(scope, receive)
        self.server = server
        self.served = server.default
        given = self.headers.get("x-request-id", "")
        self.id = given if ID.fullmatch(given) else secrets.token_hex(12)
        self.path = path
        self.arrival_s = time.monotonic()
        self.caller: Caller | None = scope.get(CALLER)
        self.body_read = NO_BODY
        self.num_body_bytes = 0

    @property
    def tenant(self) -> str | None:
        """Whose prefix cache is used: from the key, never from the request."""
        return self.caller.tenant if self.caller else None

    def choose(self, asked: str | None) -> tuple[str, Served]:
        """Return the name to answer under, and the model that answers, from now on `served`.

        Raises:
            ApiError: There is no such model.
        """
        self.served = self.server.find(asked)
        return asked or self.served.name, self.served

    async def read(
        self, model: type[Body], any_type: bool = False, fields: QueryParams | None = None
    ) -> Body:
        """Read and validate the body; none at all is an empty object.

        Args:
            model: What it must be.
            any_type: As `Endpoint.any_type`; web pages, which name their origin, have to say.
            fields: Such as stand in the URL, beside those of the body.

        Raises:
            ApiError: It is no JSON, does not fit the model, is too long, or took too long; the
                server ended meanwhile.
        """
        server = self.server
        limit = asyncio.timeout(server.config.read_timeout_s)
        try:
            async with limit:
                server.reading.add(limit)
                body = await self._read_bounded(server.max_body_bytes)
        except TimeoutError:
            if server.draining:
                raise ApiError("shutting_down", retry_after_s=5) from None
            raise ApiError("read_timeout") from None
        finally:
            server.reading.discard(limit)
        self.arrival_s = time.monotonic()
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        told = not any_type or "origin" in self.headers
        if body and told and kind != "application/json":
            # Web pages may send other types anywhere without asking; so this one is insisted on.
            raise ApiError("unsupported_media_type")
        if self.headers.get("content-encoding", "identity").strip().lower() != "identity":
            message = "bodies are not unpacked here; send JSON without Content-Encoding"
            raise ApiError("unsupported_media_type", message)
        body = with_fields(body or b"{}", fields, model) if fields else body or b"{}"
        lenient = fields is None and server.config.ignore_unknown_fields
        if len(body) > SMALL_BODY_BYTES:
            found = await asyncio.to_thread(self._validated, model, body, lenient)
        else:
            found = self._validated(model, body, lenient)
        if isinstance(found, Generation):
            config = server.config
            found.adopt(config.enable_force_include_usage, config.return_tokens_as_token_ids)
        if isinstance(found, Schema):
            self.body_read = found
            self.id = found.wishes().request_id or self.id
        return found

    def _validated(self, model: type[Body], body: bytes, lenient: bool) -> Body:
        if len(body) > SMALL_BODY_BYTES:
            check_counts(body, self.server.max_model_len)
        try:
            return validated(model, body)
        except ValidationError as error:
            if lenient:
                return without_unknown(model, body, error)
            raise from_validation(error, body) from None

    async def _read_bounded(self, limit: int) -> bytes:
        """Read what comes, and stop where the limit is passed; announced lengths count first."""
        announced = self.headers.get("content-length", "0")
        parts: list[bytes] = []
        size = int(announced) if announced.isdecimal() else 0
        if size <= limit:
            size = 0
            async for part in self.stream():
                size += len(part)
                if size > limit:
                    break
                self._hold(len(part))
                parts.append(part)
            else:
                return b"".join(parts)
        raise ApiError(
            "body_too_large", f"the body may have {limit} bytes (--max-body-bytes), no more"
        )

    def _hold(self, num_bytes: int) -> None:
        """Count bytes that are kept until the request ends.

        Raises:
            ApiError: All requests together keep too many.
        """
        self.num_body_bytes += num_bytes
        self.server.body_bytes += num_bytes
        if self.server.body_bytes > MAX_HELD_BYTES:
            message = "the bodies of the requests under way take too much memory already"
            raise ApiError("queue_full", message, retry_after_s=1)

    def release(self) -> None:
        """Stop counting the body: the request has ended."""
        self.server.body_bytes -= self.num_body_bytes
        self.num_body_bytes = 0
