"""What a draft model is set up from, and its share of the memory for caches.

Called when an engine starts and by `explain`. The model itself is `engine.core.draft_model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.config import EngineConfig, ResolvedConfig
from hotshoe.engine.start.cache_plan import (
    cache_bytes,
    layout_of,
    plan_cache,
    request_blocks,
    state_blocks,
)
from hotshoe.engine.start.places import check_model, place_of, read_tokenizer
from hotshoe.errors import CheckpointError, ConfigError, UserError
from hotshoe.executor import WorkerInfo
from hotshoe.plugins import PluginManager
from hotshoe.speculation.drafting import DRAFT_MODEL, EVERY_METHOD, open_drafting
from hotshoe.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hotshoe.engine.start.setup import EngineSetup

NAME = "speculative_config"
#: Entries of `speculative_config` beside those of every method; all are options of the same name.
OPTIONS = ("model", "platform", "quantization", "revision")
#: Options of the engine that say nothing of its draft model; those of `OPTIONS` come by themselves.
UNSHARED = (
    "tokenizer",
    "hf_overrides",
    "max_model_len",
    "kernel",
    "model_impl",
    "enable_lora",
    "lora_modules",
    "logits_processors",
    "quantization_cache_dir",
    "state_cache_mode",  # nobody shares its states
    "offload_weights",
    "cpu_offload_gb",
    "speculative_config",
    "kv_cache_memory_bytes",
    "pooling",
    # It computes in the engine's own process, whatever ranks the model has.
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "pipeline_layers",
    "pipeline_steps",
    "enable_expert_parallel",
    "enable_eplb",
    "num_redundant_experts",
    "distributed_executor_backend",
    "nnodes",
)
#: Those that a draft model on another platform does not share either: they suit the engine's.
OF_THE_PLATFORM = (
    "platform_options",
    "dtype",
    "kv_cache_dtype",
    "block_size",
    "async_scheduling",
    "memory_share",
)


def draft_setup(setup: EngineSetup) -> EngineSetup | None:
    """Resolve the configuration of the draft model that an engine names; None if it names none.

    Raises:
        UserError: It cannot be used.
    """
    options = dict(setup.config.speculative_config or {})
    if options.get("method") != DRAFT_MODEL:
        return None
    with naming(str(options.get("model"))):
        return _prepare(setup, options)


def check_speculation(config: EngineConfig, plugins: PluginManager) -> None:
    """Refuse, before anything is loaded, a method that nobody knows, options that it lacks, and a
    model of drafts that is not there.

    Raises:
        UserError: It names the option.
    """
    options = config.speculative_config or {}
    if options.get("method") == DRAFT_MODEL:
        own = _own(options)
        with naming(own["model"]):
            check_model(EngineConfig(own["model"], revision=own.get("revision")), plugins)
        return
    open_drafting(config, plugins)
    head = options.get("model")
    if isinstance(head, str):
        place = place_of(EngineConfig(head, revision=options.get("revision")), plugins)
        if place is not None and not place.exists():
            raise CheckpointError(f"{NAME}.model: there is no directory or file {place}")


def _prepare(setup: EngineSetup, options: Mapping[str, Any]) -> EngineSetup:
    from hotshoe.engine.start.setup import prepare

    config = setup.config
    own = _own(options)
    if own.get("platform") in (None, "auto"):
        own["platform"] = config.platform
    is_beside = own["platform"] == config.platform
    plain = EngineConfig(own["model"])
    unshared = UNSHARED if is_beside else (*UNSHARED, *OF_THE_PLATFORM)
    found = prepare(
        EngineConfig.from_mapping(
            asdict(config)
            | {name: getattr(plain, name) for name in unshared}
            | own
            | {"quantization": own.get("quantization"), "revision": own.get("revision")}
        ),
        setup.plugins,
        # That of several ranks belongs to the first of them, with a part of the processors.
        setup.platform if is_beside and config.num_ranks == 1 else None,
    )
    longest = min(found.config.max_model_len, config.max_model_len)
    found = replace(found, config=replace(found.config, max_model_len=longest))
    if not config.skip_tokenizer_init:
        _check_tokens(setup, found)
    return found


def _own(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the engine that a draft model has for itself.

    Raises:
        ConfigError: One is none of them, or there is no model.
    """
    own = {k: v for k, v in options.items() if k not in EVERY_METHOD}
    for name, value in own.items():
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS) or f"; it takes {', '.join(OPTIONS)}"
            raise ConfigError(f"{NAME}: method {DRAFT_MODEL} has no option {name}{hint}")
        if not isinstance(value, str) and (value is not None or name == "model"):
            raise ConfigError(f"{NAME}.{name} must be a text, not {value!r}")
    if not own.get("model"):
        raise ConfigError(
            f"{NAME}.model is missing; method {DRAFT_MODEL} needs a directory or a name of a model"
        )
    return own


@dataclass(frozen=True, slots=True)
class Caches:
    """What the caches of both models get.

    Attributes:
        num_blocks: Of the draft model's pools.
        bytes: Of its cache.
        config, info: Of the engine, with the memory that is left.
    """

    num_blocks: tuple[int, ...]
    bytes: int
    config: ResolvedConfig
    info: WorkerInfo


def share_caches(
    draft: ResolvedConfig, found: WorkerInfo, config: ResolvedConfig, info: WorkerInfo
) -> Caches:
    """Give a draft model a part of the memory that there is for caches, in the proportion of a
    sequence's; on another platform, as much memory of its own as holds as many sequences.

    Args:
        draft, found: Of the draft model.
        config, info: Of the engine.

    Raises:
        UserError: The memory does not suffice.
    """
    given = config.kv_cache_memory_bytes
    budget = info.cache_budget_bytes if given is None else given
    own, other = _request_bytes(draft, found), _request_bytes(config, info)
    if draft.platform == config.platform:
        part = budget * own // (own + other)
        note = f"a share of {budget / 2**20:.2f} MiB for both models"
    else:
        part = min(found.cache_budget_bytes, budget * own // other)
        note = f"as {budget / 2**20:.2f} MiB for {config.model}, or what platform "
        note += f"{draft.platform} grants"
    limited = replace(draft, kv_cache_memory_bytes=None)
    layout = layout_of(limited, found)
    spares = state_blocks(limited, layout, limited.max_num_seqs)  # which take drafts
    part -= cache_bytes(found, spares)
    with naming(draft.model):
        planned = plan_cache(limited, replace(found, cache_budget_bytes=part, budget_note=note))
    num_blocks = tuple(map(add, planned, spares))
    taken = cache_bytes(found, num_blocks)
    left = budget - (taken if draft.platform == config.platform else 0)
    if given is not None:
        config = replace(config, kv_cache_memory_bytes=left)
    return Caches(num_blocks, taken, config, replace(info, cache_budget_bytes=left))


def _check_tokens(setup: EngineSetup, draft: EngineSetup) -> None:
    """Refuse a draft model whose token ids mean something else.

    Raises:
        ConfigError: With the first that does.
    """
    path = setup.config.tokenizer
    ours = read_tokenizer(Path(path) if path else setup.model_config.path, setup.plugins)
    theirs = read_tokenizer(draft.model_config.path, setup.plugins).token_ids
    known = {number: text for text, number in ours.token_ids.items()}
    for text, number in sorted(theirs.items(), key=lambda item: item[1]):
        if known.get(number, text) != text:
            raise ConfigError(
                f"it has another vocabulary than {setup.config.model}: token {number} is "
                f"{text!r} there and {known[number]!r} here; use a draft model of the same family"
            )


def _request_bytes(config: ResolvedConfig, info: WorkerInfo) -> int:
    """Return the bytes of the longest sequence."""
    length, step = config.max_model_len, config.max_num_batched_tokens
    return cache_bytes(info, request_blocks(layout_of(config, info), length, step))


@contextmanager
def naming(model: str) -> Iterator[None]:
    """Say of an error of the user's that it is the draft model's."""
    try:
        yield
    except UserError as error:
        if NAME not in str(error):
            error.args = (f"{NAME}.model {model}: {error}", *error.args[1:])
        raise
