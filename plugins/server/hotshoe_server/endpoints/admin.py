"""Admin verbs: on the admin socket, or with an admin key."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from pydantic import Field

from hotshoe.errors import CheckpointError, RequestError
from hotshoe_server.call import Call
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint
from hotshoe_server.schemas.base import Schema, ShortText


class Done(Struct):
    """It has been done, or not."""

    done: bool = True


class Sleeping(Struct):
    """Whether the engine sleeps."""

    is_sleeping: bool


class PauseRequest(Schema):
    """See `EngineClient.pause`."""

    mode: Literal["abort", "wait", "keep"] = "abort"
    clear_cache: bool = True


class SleepRequest(Schema):
    """See `EngineClient.sleep`."""

    level: int = 1
    mode: Literal["keep", "wait", "abort"] = "keep"


class WakeRequest(Schema):
    """See `EngineClient.wake_up`."""

    tags: list[Literal["weights", "kv_cache", "scheduling"]] | None = Field(
        None, max_length=3, fail_fast=True
    )


class UpdateRequest(Schema):
    """See `EngineClient.update_weights`: a directory of the server's host, or a file there."""

    path: str = Field(min_length=1, max_length=4096)


class LoadAdapterRequest(Schema):
    """See `EngineClient.load_adapter`: a directory of the server's host, in the form of PEFT."""

    lora_name: str = Field(min_length=1, max_length=256)
    lora_path: str = Field(min_length=1, max_length=4096)


class UnloadAdapterRequest(Schema):
    """See `EngineClient.unload_adapter`."""

    lora_name: str = Field(min_length=1, max_length=256)


class ResetRequest(Schema):
    """See `EngineClient.reset_prefix_cache`."""

    reset_running: bool = False


class AbortRequest(Schema):
    """Ids of requests; without any, all of the engine's."""

    request_ids: list[ShortText] | None = Field(None, max_length=65536, fail_fast=True)


async def pause(call: Call, body: PauseRequest) -> Done:
    """Stop generating; return when it has."""
    await call.server.client.pause(body.mode, body.clear_cache)
    return Done()


async def resume(call: Call) -> Done:
    """Go on."""
    await call.server.client.resume()
    return Done()


async def sleep(call: Call, body: SleepRequest) -> Done:
    """Give memory back."""
    await call.server.client.sleep(body.level, body.mode)
    return Done()


async def wake_up(call: Call, body: WakeRequest) -> Done:
    """Take memory back."""
    await call.server.client.wake_up(body.tags)
    return Done()


async def update_weights(call: Call, body: UpdateRequest) -> Done:
    """Replace weights between two steps, all that are there or none."""
    try:
        await call.server.client.update_weights(body.path)
    except CheckpointError as error:
        raise ApiError("invalid_value", str(error), "path") from error
    return Done()


async def load_adapter(call: Call, body: LoadAdapterRequest) -> Done:
    """Load an adapter, in place of one of this name."""
    if call.served.adapter(body.lora_name) is None:
        raise ApiError(
            "invalid_value", "the model itself has this name; choose another", "lora_name"
        )
    try:
        await call.server.client.load_adapter(body.lora_name, body.lora_path)
    except CheckpointError as error:
        raise ApiError("invalid_value", str(error), "lora_path") from error
    return Done()


async def unload_adapter(call: Call, body: UnloadAdapterRequest) -> Done:
    """Forget an adapter that no request uses."""
    try:
        await call.server.client.unload_adapter(body.lora_name)
    except RequestError as error:
        raise ApiError("invalid_value", str(error), "lora_name") from error
    return Done()


async def is_sleeping(call: Call) -> Sleeping:
    """Say whether the engine sleeps."""
    return Sleeping(call.server.client.is_sleeping)


async def reset_prefix_cache(call: Call, body: ResetRequest) -> Done:
    """Forget cached prefixes."""
    return Done(await call.server.client.reset_prefix_cache(body.reset_running))


async def abort_requests(call: Call, body: AbortRequest) -> Done:
    """End requests with finish reason "abort"."""
    await call.server.client.abort_everywhere(body.request_ids)
    return Done()


def _verb(path: str, handler: object, summary: str, method: str = "POST") -> Endpoint:
    return Endpoint(method, path, handler, summary, admin=True)  # type: ignore[arg-type]


ENDPOINTS = [
    _verb("/pause", pause, "Stop generating"),
    _verb("/resume", resume, "Go on"),
    _verb("/sleep", sleep, "Give memory back"),
    _verb("/wake_up", wake_up, "Take memory back"),
    _verb("/update_weights", update_weights, "Replace weights"),
    _verb("/v1/load_lora_adapter", load_adapter, "Load an adapter"),
    _verb("/v1/unload_lora_adapter", unload_adapter, "Forget an adapter"),
    _verb("/is_sleeping", is_sleeping, "Whether the engine sleeps", "GET"),
    _verb("/reset_prefix_cache", reset_prefix_cache, "Forget cached prefixes"),
    _verb("/abort_requests", abort_requests, "End requests"),
]
