"""A second, smaller model beside an engine's own, which makes its drafts: what it is set up from,
its share of memory, its life. How it computes drafts is `hotshoe.speculation.draft_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.config import EngineConfig, ResolvedConfig
from hotshoe.engine.core.rest import fall_asleep, wake
from hotshoe.engine.start.cache_plan import (
    cache_bytes,
    layout_of,
    plan_cache,
    request_blocks,
    state_blocks,
)
from hotshoe.engine.start.places import read_tokenizer
from hotshoe.errors import ConfigError, UserError
from hotshoe.executor import StatesWorker, Worker, WorkerInfo
from hotshoe.speculation.draft_rows import DraftLimits, DraftRows
from hotshoe.speculation.drafting import DRAFT_MODEL
from hotshoe.speculation.proposer import Wanted
from hotshoe.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hotshoe.engine.start.setup import EngineSetup
    from hotshoe.scheduler import Request

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


class DraftModel:
    """The model, its worker and its memory; see `hotshoe.speculation.proposer.Drafter`.

    Args:
        setup: Of the engine.

    Raises:
        UserError: It cannot be used beside the engine's model, or not as configured.
    """

    def __init__(self, setup: EngineSetup) -> None:
        options = dict(setup.config.speculative_config or {})
        with _naming(str(options.get("model"))):
            self._setup = _prepare(setup, options)
            #: Its device is the engine's, and so is its memory.
            self._is_beside = self._setup.config.platform == setup.config.platform
            self._worker: Worker | None = self._setup.create_worker()
        self.name = self._setup.config.model
        self._verifying = 0
        self._num_blocks: tuple[int, ...] = ()
        self._rows: DraftRows | None = None

    def load(self) -> None:
        """Build the model and load its weights.

        Raises:
            ConfigError: It keeps states of sequences that its worker cannot copy.
        """
        assert self._worker is not None
        with _naming(self.name):
            self._info = self._worker.load()
            groups = layout_of(self._setup.config, self._info).groups
            states = any(group.spec.kind == "state" for group in groups)
            if states and not isinstance(self._worker, StatesWorker):
                raise ConfigError(
                    f"platform {self._setup.config.platform} computes it in a worker of its own, "
                    "which cannot copy the states that it keeps; use a model without states"
                )

    def share(self, config: ResolvedConfig, info: WorkerInfo) -> tuple[ResolvedConfig, WorkerInfo]:
        """Take a part of the memory that there is for caches, in the proportion of a sequence's; on
        another platform, as much memory of its own as holds as many sequences.

        Args:
            config, info: Of the engine; its model and this one are loaded.

        Returns:
            Both, with the memory that is left.

        Raises:
            UserError: Memory or vocabulary do not fit.
        """
        self._verifying = info.vocab_size
        if config.skip_tokenizer_init and info.vocab_size != self._info.vocab_size:
            raise ConfigError(
                f"{NAME}.model: {self.name} has {self._info.vocab_size} tokens and {config.model} "
                f"has {info.vocab_size}; use a draft model of the same vocabulary"
            )
        given = config.kv_cache_memory_bytes
        budget = info.cache_budget_bytes if given is None else given
        own, other = _request_bytes(self._setup.config, self._info), _request_bytes(config, info)
        if self._is_beside:
            part = budget * own // (own + other)
            note = f"a share of {budget / 2**20:.2f} MiB for both models"
        else:
            part = min(self._info.cache_budget_bytes, budget * own // other)
            note = f"as {budget / 2**20:.2f} MiB for {config.model}, or what platform "
            note += f"{self._setup.config.platform} grants"
        limited = replace(self._setup.config, kv_cache_memory_bytes=None)
        layout = layout_of(limited, self._info)
        spares = state_blocks(limited, layout, limited.max_num_seqs)  # which take drafts
        part -= cache_bytes(self._info, spares)
        with _naming(self.name):
            found = replace(self._info, cache_budget_bytes=part, budget_note=note)
            planned = plan_cache(limited, found)
        self._num_blocks = tuple(map(add, planned, spares))
        left = budget - self.beside_bytes
        info = replace(info, cache_budget_bytes=left)
        return config if given is None else replace(config, kv_cache_memory_bytes=left), info

    @property
    def weight_bytes(self) -> int:
        return self._info.weight_bytes

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._info, self._num_blocks)

    @property
    def beside_bytes(self) -> int:
        """Of its cache, on the engine's device."""
        return self.cache_bytes if self._is_beside else 0

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes by purpose."""
        return {"draft_weights": self.weight_bytes, "draft_kv_cache": self.cache_bytes}

    def allocate(self) -> None:
        """Take memory for the cache that `share` planned."""
        assert self._worker is not None
        with _naming(self.name):
            self._worker.allocate_cache(self._num_blocks)
        self._open_rows()

    def _open_rows(self) -> None:
        """Forget all sequences: the cache holds nothing."""
        assert self._worker is not None
        config = self._setup.config
        limits = DraftLimits(
            config.max_num_seqs,
            config.max_model_len,
            config.max_num_batched_tokens,
            (self._info.vocab_size, self._verifying),
        )
        caches = self._info.caches
        groups = () if caches is None else caches.groups
        self._rows = DraftRows(self._worker, limits, self._num_blocks, config.block_size, groups)

    def fall_asleep(self, level: int) -> None:
        """Give memory back, with all that is known of sequences; see `engine.rest`.

        Weights that cannot be moved are read again on waking: the engine's model sleeps already.
        """
        if (worker := self._worker) is not None:
            self._rows = None
            try:
                self._worker = fall_asleep(worker, level)
            except UserError:
                self._worker = fall_asleep(worker, 2)

    def wake(self, missing: set[str]) -> None:
        """Take memory back."""
        create = self._setup.create_worker
        self._worker = wake(self._worker, missing, create, self._num_blocks, lambda worker: None)
        if "kv_cache" in missing:
            self._open_rows()

    def close(self) -> None:
        """Release the device and all memory. May be called twice."""
        if self._worker is not None:
            self._worker.close()

    def add(self, request: Request) -> None: ...

    def discard(self, request: Request) -> None:
        if self._rows is not None:
            self._rows.discard(request.request_id)

    def propose(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        assert self._rows is not None, "a step has ended, so nothing sleeps"
        return self._rows.propose(wanted)


def open_draft_model(setup: EngineSetup) -> DraftModel | None:
    """Make the draft model that the configuration names; None where it names none.

    Raises:
        UserError: It cannot be used.
    """
    options = setup.config.speculative_config or {}
    return DraftModel(setup) if options.get("method") == DRAFT_MODEL else None


def _prepare(setup: EngineSetup, options: Mapping[str, Any]) -> EngineSetup:
    """Resolve the configuration of a draft model.

    Raises:
        UserError: It cannot be used.
    """
    from hotshoe.engine.start.setup import prepare

    config = setup.config
    own = {k: v for k, v in options.items() if k not in ("method", "num_speculative_tokens")}
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
def _naming(model: str) -> Iterator[None]:
    """Say of an error of the user's that it is the draft model's."""
    try:
        yield
    except UserError as error:
        if NAME not in str(error):
            error.args = (f"{NAME}.model {model}: {error}", *error.args[1:])
        raise
