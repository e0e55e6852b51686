"""What the server says of itself: models, health, load, versions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from msgspec import Struct

from hotshoe import __version__
from hotshoe.engine.client import EngineStats
from hotshoe.errors import EngineDeadError
from hotshoe_server.call import Call
from hotshoe_server.errors import ApiError, unknown_model
from hotshoe_server.extensions import Endpoint
from hotshoe_server.fleet import state_of
from hotshoe_server.state import Served

ENGINE_OVER = "the engine has ended and is not started again: restart the server"


class Permission(Struct, tag_field="object", tag="model_permission"):
    """What may be done with a model, in the form that OpenAI's API once had."""

    id: str
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(Struct, tag_field="object", tag="model"):
    """A model that requests may name."""

    id: str
    created: int
    owned_by: str
    max_model_len: int
    root: str
    parent: str | None
    permission: list[Permission]
    state: str = "ready"


class ModelList(Struct, tag_field="object", tag="list"):
    """All of them."""

    data: list[ModelCard]


class State(Struct):
    """One word on how things are."""

    status: str


class Load(Struct):
    """How busy the engine is, over all front ends."""

    server_load: int
    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    kv_cache_usage: float


class Version(Struct):
    """Of the server."""

    version: str


async def models(call: Call) -> ModelList:
    """List the names of the model, and its adapters."""
    cards = []
    for served in call.server.models.values():
        cards += [_card(served, name) for name in served.names]
        if served.client.config.enable_lora:
            cards += [_adapter_card(served, name) for name in sorted(await _adapters(call, served))]
    return ModelList(cards)


async def _adapters(call: Call, served: Served) -> Iterable[str]:
    """Return the names of a model's adapters; of an engine that is down among others, as known."""
    try:
        return await served.client.adapters()
    except EngineDeadError:
        if len(call.server.models) == 1:
            raise
        return served.adapters


async def model(call: Call) -> ModelCard:
    """Describe one.

    Raises:
        ApiError: There is no model and no adapter of this name.
    """
    name, served = call.choose(call.path_params["model"])
    if served.adapter(name) is None:
        return _card(served, name)
    adapters = await served.client.adapters()
    if name not in adapters:
        raise unknown_model(name, [*call.server.names, *sorted(adapters)])
    return _adapter_card(served, name)


def _adapter_card(served: Served, name: str) -> ModelCard:
    """Describe an adapter, without its place on the server's host."""
    card = _card(served, name)
    card.parent = card.root
    return card


def _card(served: Served, name: str) -> ModelCard:
    length, created_s = served.client.info.max_model_len, served.created_s
    permission = Permission(f"modelperm-{served.fingerprint}", created_s)
    return ModelCard(
        name, created_s, "hotshoe", length, served.name, None, [permission], state_of(served)
    )


def _asked(call: Call) -> list[Served]:
    """Return the model that parameter `model` names; without it, all."""
    name = call.query_params.get("model")
    return list(call.server.models.values()) if name is None else [call.server.named(name)]


async def live(call: Call) -> State:
    """Say that the process answers, and is of use: some engine works or is replaced."""
    if all(served.client.is_over for served in call.server.models.values()):
        raise ApiError("engine_dead", ENGINE_OVER)
    return State("live")


async def ready(call: Call) -> State:
    """Say that requests are taken: some engine works, and no shutdown has begun."""
    if call.server.draining:
        raise ApiError("shutting_down", retry_after_s=5)
    *others, last = _asked(call)
    for served in others:
        with contextlib.suppress(EngineDeadError):
            await served.client.check_health()
            return State("ready")
    await last.client.check_health()
    return State("ready")


async def health(call: Call) -> State:
    """Say that a token can be generated: by an engine that works, and neither rests nor sleeps.

    Of several models one is enough, and one that wakes when it is asked counts as awake.
    """
    *others, last = _asked(call)
    for served in others:
        with contextlib.suppress(EngineDeadError, ApiError):
            return await _health(call, served)
    return await _health(call, last)


async def _health(call: Call, served: Served) -> State:
    client, fleet = served.client, call.server.fleet
    await client.check_health()
    asleep = client.is_sleeping and not (fleet is not None and fleet.wakes)
    if asleep or client.is_paused:
        raise ApiError("engine_asleep" if asleep else "engine_paused")
    return State("healthy")


async def load(call: Call) -> Load:
    """Say how busy the engines are, together; the fullest cache counts."""
    found: list[EngineStats] = []
    *others, last = _asked(call)
    for served in others:
        with contextlib.suppress(EngineDeadError):
            found.append(await served.client.stats())
    with contextlib.suppress(*[EngineDeadError] if found else []):
        found.append(await last.client.stats())
    running, waiting = sum(s.num_running for s in found), sum(s.num_waiting for s in found)
    return Load(
        running + waiting,
        running,
        waiting,
        sum(s.num_waiting_tokens for s in found),
        max(s.kv_cache_usage for s in found),
    )


async def version(call: Call) -> Version:
    """Say which version this is."""
    return Version(__version__)


async def server_info(call: Call) -> dict[str, Any]:
    """Describe an engine, the first by default: device, memory, decisions, slots."""
    served = _asked(call)[0]
    info = served.client.info
    hidden = (
        "model",
        "tokenizer",
        "disable_plugins",
        "platform_options",
        "hf_overrides",
        "generation_config",
        "quantization_cache_dir",
    )
    config = {name: v for name, v in asdict(info.config).items() if name not in hidden}
    facts = {**asdict(info.facts), "features": sorted(info.facts.features)}
    return {
        "version": __version__,
        "models": call.server.names,
        "config": config,
        "max_model_len": info.max_model_len,
        "vocab_size": info.vocab_size,
        "num_blocks": info.num_blocks,
        "facts": facts,
        "changes": [asdict(change) for change in info.changes],
        "decisions": [asdict(decision) for decision in info.decisions],
        "startup_s": dict(info.startup),
        "memory_bytes": dict(info.memory),
        "sampling_defaults": dict(info.sampling_defaults),
        "tool_call_parser": getattr(served.tool_format, "name", None),
        "reasoning_parser": getattr(served.reasoning_format, "name", None),
        "num_restarts": served.client.num_restarts,
    }


ENDPOINTS = [
    Endpoint("GET", "/v1/models", models, "The models", answer=ModelList),
    Endpoint("GET", "/v1/models/{model:path}", model, "One model", answer=ModelCard),
    Endpoint("GET", "/live", live, "Whether the process answers", answer=State),
    Endpoint("GET", "/ready", ready, "Whether requests are taken", answer=State),
    Endpoint("GET", "/health", health, "Whether a token can be generated", answer=State),
    Endpoint("GET", "/ping", health, "The same, for SageMaker", answer=State),
    Endpoint("POST", "/ping", health, "The same, for SageMaker", answer=State),
    Endpoint("GET", "/load", load, "How busy the engine is", answer=Load),
    Endpoint("GET", "/version", version, "The server's version", answer=Version),
    Endpoint("GET", "/server_info", server_info, "What the engine is made of"),
]
