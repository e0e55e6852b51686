"""Every error that the server answers, in one catalog, and the only place that words them.

An error body is OpenAI's: `{"error": {"message", "type", "param", "code"}}`. The engine's own
failures get a fixed text: their messages may hold paths and addresses, and go to the log alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
from pydantic import ValidationError
from pydantic_core import from_json

from hotshoe.errors import EngineError, MemoryLimitError, QueueFullError, RequestError
from hotshoe_server.validation import Place, find_place

MAX_MESSAGE_CHARS = 1000
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_UNSPEAKABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

_INVALID, _SERVER = "invalid_request_error", "server_error"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """How one error looks: HTTP status, OpenAI's type, and a text where the case adds none."""

    status: int
    type: str
    message: str = ""


CATALOG: dict[str, ErrorKind] = {
    "invalid_json": ErrorKind(400, _INVALID, "the body is not valid JSON"),
    "invalid_value": ErrorKind(400, _INVALID),
    "missing_required_parameter": ErrorKind(400, _INVALID),
    "unknown_parameter": ErrorKind(400, _INVALID),
    "unsupported_parameter": ErrorKind(400, _INVALID),
    "unsupported_value": ErrorKind(400, _INVALID),
    "unsupported_model": ErrorKind(400, _INVALID),
    "context_length_exceeded": ErrorKind(400, _INVALID),
    "tool_server_failed": ErrorKind(424, _INVALID),
    "invalid_http": ErrorKind(400, _INVALID, "this is not a valid HTTP request"),
    "invalid_api_key": ErrorKind(
        401, "authentication_error", "give a valid key as `Authorization: Bearer KEY`"
    ),
    "admin_only": ErrorKind(
        403, "permission_error", "this needs an admin key, or the admin socket"
    ),
    "host_not_allowed": ErrorKind(
        403, "permission_error", "the Host header names no host of this server (--allowed-hosts)"
    ),
    "model_not_found": ErrorKind(404, _INVALID),
    "response_not_found": ErrorKind(404, _INVALID),
    "not_found": ErrorKind(404, _INVALID, "there is nothing at this URL"),
    "method_not_allowed": ErrorKind(405, _INVALID, "this URL takes another method"),
    "read_timeout": ErrorKind(408, _INVALID, "the request took too long to arrive"),
    "body_too_large": ErrorKind(413, _INVALID),
    "unsupported_media_type": ErrorKind(
        415, _INVALID, "send JSON, with the header `Content-Type: application/json`"
    ),
    "headers_too_large": ErrorKind(431, _INVALID, "the request's head is too long"),
    "queue_full": ErrorKind(429, "rate_limit_error"),
    "internal_error": ErrorKind(500, _SERVER, "the server failed on this request; see its log"),
    "generation_failed": ErrorKind(500, _SERVER),
    "engine_dead": ErrorKind(503, _SERVER, "the engine has stopped or does not answer"),
    "out_of_memory": ErrorKind(503, _SERVER),
    "model_asleep": ErrorKind(503, _SERVER, "the model is asleep"),
    "models_busy": ErrorKind(503, _SERVER, "all models are busy"),
    "adapter_not_ready": ErrorKind(503, _SERVER, "the adapter is not loaded yet"),
    "model_not_loaded": ErrorKind(503, _SERVER, "the model's engine did not start; see the log"),
    "engine_paused": ErrorKind(503, _SERVER, "the engine is paused until POST /resume"),
    "engine_asleep": ErrorKind(503, _SERVER, "the engine is asleep until POST /wake_up"),
    "loading": ErrorKind(503, _SERVER, "the model is being loaded"),
    "shutting_down": ErrorKind(503, _SERVER, "the server is shutting down"),
    "deadline_exceeded": ErrorKind(504, _SERVER, "the request ran longer than it may"),
}


class ApiError(Exception):
    """An error for the client.

    Args:
        code: A key of CATALOG.
        message: Default: the catalog's.
        param: The field at fault.
        retry_after_s: Becomes a Retry-After header.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        kind = CATALOG[code]
        super().__init__(clean(message or kind.message))
        self.code = code
        self.param = None if param is None else clean(param)
        self.status = kind.status
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that go with it."""
        if self.retry_after_s is None:
            return {}
        return {"retry-after": str(max(1, round(self.retry_after_s)))}

    def body(self) -> bytes:
        """Return the JSON body."""
        return msgspec.json.encode({"error": self.detail()})

    def detail(self) -> dict[str, str | None]:
        """Return the body's `error` object."""
        return {
            "message": str(self),
            "type": CATALOG[self.code].type,
            "param": self.param,
            "code": self.code,
        }


def unknown_model(asked: str | None, names: Iterable[str]) -> ApiError:
    """Say that a request names no model, and which names there are."""
    message = f"there is no model {asked!r} here, only {', '.join(names)}"
    return ApiError("model_not_found", message, "model")


def as_api_error(error: Exception) -> ApiError:
    """Say what a client may know of an exception."""
    match error:
        case ApiError():
            return error
        case QueueFullError():
            return ApiError("queue_full", str(error), retry_after_s=error.retry_after_s)
        case RequestError():
            param = _PARAMS.get(error.field, error.field) if error.field else None
            return ApiError("invalid_value", str(error), param)
        case MemoryLimitError():
            return ApiError("out_of_memory", str(error), retry_after_s=5)
        case EngineError():
            return ApiError("engine_dead", retry_after_s=5)
        case _:
            return ApiError("internal_error")


#: What the engine calls a field -> what requests call it, where these differ.
_PARAMS = {"grammar": "response_format"}
_PYDANTIC_CODES = {
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
    "json_invalid": "invalid_json",
}

#: Types of parts that are no text.
_FOREIGN = re.compile(r"(?:input_)?(?:image|audio|video|file)[a-z_]{0,16}$")


def from_validation(error: ValidationError, body: bytes) -> ApiError:
    """Name the first mistake that the validation of a body found."""
    first = error.errors(include_url=False, include_input=False)[0]
    code = _PYDANTIC_CODES.get(first["type"], "invalid_value")
    if code == "invalid_json":
        return ApiError(code, first["msg"])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, RequestError):
        return as_api_error(cause)
    missing = first["type"] == "missing"
    param = spelt(find_place(first["loc"], from_json(body), missing))
    if code == "unknown_parameter":
        return ApiError(code, f"unknown parameter: {param}", param)
    if code == "missing_required_parameter":
        return ApiError(code, f"missing parameter: {param}", param)
    if tag := _FOREIGN.match(str(first.get("ctx", {}).get("tag", ""))):
        text = f"a part of type {tag[0]} is not served: models read and write text alone here"
        return ApiError(code, f"{param}: {text}", param)
    return ApiError(code, f"{param}: {first['msg']}" if param else first["msg"], param)


def spelt(place: Place) -> str | None:
    """Spell a place in a body as `messages[0].content`; None for the whole."""
    path = ""
    for part in place:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or None


def clean(text: str) -> str:
    """Return text that is safe in a body: no address, no control character, not too long."""
    text = _UNSPEAKABLE.sub("\ufffd", _ADDRESS.sub("", text))
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
