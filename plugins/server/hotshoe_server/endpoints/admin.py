"""Admin verbs: on the admin socket, or with an admin key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import BeforeValidator, Field

from hotshoe.errors import CheckpointError, HotshoeError, RequestError
from hotshoe_server.call import Call
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint
from hotshoe_server.fleet import Fleet
from hotshoe_server.schemas.base import Few, Schema, ShortText
from hotshoe_server.state import Served, ServerState

Tag = Literal["weights", "kv_cache", "scheduling"]
#: A list, or the only entry of one, as a URL has it.
OneOrSeveral = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)


class Done(Struct):
    """It has been done, or not."""

    done: bool = True


class Sleeping(Struct):
    """Whether the engine sleeps."""

    is_sleeping: bool


class Paused(Struct):
    """Whether the engine is paused."""

    is_paused: bool


class ModelRequest(Schema):
    """Which model is meant; where there are several, one must be named."""

    model: ShortText | None = None


class PauseRequest(ModelRequest):
    """See `EngineClient.pause`."""

    mode: Literal["abort", "wait", "keep"] = "abort"
    clear_cache: bool = True


class SleepRequest(ModelRequest):
    """See `EngineClient.sleep`."""

    level: int = 1
    mode: Literal["keep", "wait", "abort"] = "keep"


class WakeRequest(ModelRequest):
    """See `EngineClient.wake_up`."""

    tags: Annotated[list[Tag] | None, OneOrSeveral] = Field(None, max_length=3, fail_fast=True)


class UpdateRequest(ModelRequest):
    """See `EngineClient.update_weights`: a directory of the server's host, or a file there."""

    path: str = Field(min_length=1, max_length=4096)


class LoadAdapterRequest(ModelRequest):
    """See `EngineClient.load_adapter`: a directory of the server's host, in the form of PEFT."""

    lora_name: str = Field(min_length=1, max_length=256)
    lora_path: str = Field(min_length=1, max_length=4096)


class UnloadAdapterRequest(ModelRequest):
    """See `EngineClient.unload_adapter`."""

    lora_name: str = Field(min_length=1, max_length=256)


class LoadModelRequest(Schema):
    """See `hotshoe_server.fleet.Fleet.load`: a model as on the command line, and its options."""

    name: str = Field(min_length=1, max_length=256)
    model: str = Field(min_length=1, max_length=4096)
    options: Annotated[dict[str, Any], Few] = Field(default_factory=dict)


class UnloadModelRequest(Schema):
    """See `hotshoe_server.fleet.Fleet.unload`."""

    model: ShortText
    mode: Literal["wait", "abort"] = "wait"


class ResetRequest(ModelRequest):
    """See `EngineClient.reset_prefix_cache`."""

    reset_running: bool = False


class AbortRequest(ModelRequest):
    """Ids of requests; without any, all of the engine's. Without a model, every engine's."""

    request_ids: Annotated[list[ShortText] | None, OneOrSeveral] = Field(
        None, max_length=65536, fail_fast=True
    )


async def pause(call: Call, body: PauseRequest) -> Done:
    """Stop generating; return when it has."""
    await call.server.named(body.model).client.pause(body.mode, body.clear_cache)
    return Done()


async def resume(call: Call, body: ModelRequest) -> Done:
    """Go on."""
    await call.server.named(body.model).client.resume()
    return Done()


async def sleep(call: Call, body: SleepRequest) -> Done:
    """Give memory back."""
    served, fleet = call.server.named(body.model), call.server.fleet
    if fleet is None:
        await served.client.sleep(body.level, body.mode)
    else:
        await fleet.sleep(served, body.level, body.mode)
    return Done()


async def wake_up(call: Call, body: WakeRequest) -> Done:
    """Take memory back."""
    served, fleet = call.server.named(body.model), call.server.fleet
    if fleet is None:
        try:
            await served.client.wake_up(body.tags)
        except CheckpointError as error:
            raise ApiError("invalid_value", str(error)) from error
    else:
        await fleet.wake_up(served, body.tags)
    return Done()


async def update_weights(call: Call, body: UpdateRequest) -> Done:
    """Replace weights between two steps, all that are there or none."""
    try:
        await call.server.named(body.model).client.update_weights(body.path)
    except CheckpointError as error:
        raise ApiError("invalid_value", str(error), "path") from error
    return Done()


def adapted(server: ServerState, asked: str | None) -> Served:
    """Return the model that an operator names, or the only one that takes adapters.

    Raises:
        ApiError: As `ServerState.named`, or the model takes none.
    """
    takers = [one for one in server.models.values() if one.client.config.enable_lora]
    found = takers[0] if asked is None and len(takers) == 1 else server.named(asked)
    if found not in takers:
        message = f"model {found.name} takes no adapters; start it with --enable-lora"
        raise ApiError("invalid_value", message, "model")
    return found


async def load_adapter(call: Call, body: LoadAdapterRequest) -> Done:
    """Load an adapter, in place of one of this name."""
    served, name = adapted(call.server, body.model), body.lora_name
    for one in call.server.models.values():
        if one.adapter(name) is None:
            message = "a model itself has this name; choose another"
            raise ApiError("invalid_value", message, "lora_name")
        if one is not served and name in one.adapters:
            message = f"model {one.name} has an adapter of this name; choose another, or unload it"
            raise ApiError("invalid_value", message, "lora_name")
    is_new = name not in served.adapters
    served.adapters.add(name)  # now, so that no other model takes the name meanwhile
    try:
        await served.client.load_adapter(name, body.lora_path)
    except HotshoeError as error:
        if is_new:
            served.adapters.discard(name)
        if isinstance(error, CheckpointError):
            raise ApiError("invalid_value", str(error), "lora_path") from error
        raise
    return Done()


async def unload_adapter(call: Call, body: UnloadAdapterRequest) -> Done:
    """Forget an adapter that no request uses; its own name leads to its model."""
    holder = call.server.holder(body.lora_name) if body.model is None else None
    served = adapted(call.server, body.model if holder is None else holder.name)
    try:
        await served.client.unload_adapter(body.lora_name)
    except RequestError as error:
        if error.field == "adapter":  # it is not loaded: the engine may have been started anew
            served.adapters.discard(body.lora_name)
        raise ApiError("invalid_value", str(error), "lora_name") from error
    served.adapters.discard(body.lora_name)
    return Done()


async def is_sleeping(call: Call) -> Sleeping:
    """Say whether the engine sleeps."""
    return Sleeping(call.server.named(call.query_params.get("model")).client.is_sleeping)


async def is_paused(call: Call) -> Paused:
    """Say whether the engine is paused."""
    return Paused(call.server.named(call.query_params.get("model")).client.is_paused)


async def reset_prefix_cache(call: Call, body: ResetRequest) -> Done:
    """Forget cached prefixes."""
    client = call.server.named(body.model).client
    return Done(await client.reset_prefix_cache(body.reset_running))


async def abort_requests(call: Call, body: AbortRequest) -> Done:
    """End requests with finish reason "abort"."""
    server = call.server
    every = server.models.values() if body.model is None else [server.named(body.model)]
    for served in list(every):
        if not served.client.is_over or len(server.models) == 1:
            await served.client.abort_everywhere(body.request_ids)
    return Done()


async def load_model(call: Call, body: LoadModelRequest) -> Done:
    """Load a further model; return when it serves."""
    await _fleet(call).load(body.name, {**body.options, "model": body.model})
    return Done()


async def unload_model(call: Call, body: UnloadModelRequest) -> Done:
    """Let a model go; return when its memory is free."""
    await _fleet(call).unload(call.server.named(body.model), body.mode)
    return Done()


def _fleet(call: Call) -> Fleet:
    if call.server.fleet is None:
        raise ApiError(
            "unsupported_parameter",
            "models are loaded and unloaded by a server of one API process whose engines have "
            "processes of their own (--engine-process)",
        )
    return call.server.fleet


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
    _verb("/v1/load_model", load_model, "Load a further model"),
    _verb("/v1/unload_model", unload_model, "Let a model go"),
    _verb("/is_sleeping", is_sleeping, "Whether the engine sleeps", "GET"),
    _verb("/is_paused", is_paused, "Whether the engine is paused", "GET"),
    _verb("/reset_prefix_cache", reset_prefix_cache, "Forget cached prefixes"),
    _verb("/abort_requests", abort_requests, "End requests"),
]
