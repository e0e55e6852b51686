"""The engine's configuration: one frozen record, one name per option everywhere.

A field `max_num_seqs` is `--max-num-seqs` on the command line, `max_num_seqs:` in a YAML file and
a keyword of `LLM(...)`. None means "decided at start-up"; `resolve_changes` applies what platform
and model decided, and returns a copy. Standard library only.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Self

from hotshoe.errors import ConfigError
from hotshoe.platform import Change
from hotshoe.suggest import did_you_mean
from hotshoe.types.cache import QUANTIZED
from hotshoe.types.drafts import check_drafts
from hotshoe.types.levels import DEFAULT_LEVEL, LEVELS, levels_text
from hotshoe.types.mesh import Mesh
from hotshoe.types.pooling import POOLING_KINDS
from hotshoe.types.trees import DraftTree, tree_of

DTYPES = ("auto", "float32", "bfloat16", "float16")
#: Of a request and step: every draft takes a row of logits.
MAX_SPECULATIVE_TOKENS = 64
#: Most of them where measurements say how many.
ADAPTIVE_SPECULATIVE_TOKENS = 8
#: The method whose drafts come with each step, from layers of the model's own checkpoint.
MTP = "mtp"
#: Of options with entries: the key of a value that is one word.
LONE = {"speculative_config": "method"}


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """Declare a configuration field: its default, its help text and its bounds."""
    metadata = {"help": help, "choices": choices, "low": low, "high": high}
    if isinstance(default, (dict, list)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that defines an engine. Validated when built; never edited in place.

    Raises:
        ConfigError: A value has the wrong type or lies outside its bounds.
    """

    model: str = option(
        "demo", "model directory, a name that a plugin knows, such as demo, or ORGANIZATION/MODEL"
    )
    revision: str | None = option(
        None, "branch, tag or commit of a model that is fetched; default: its newest"
    )
    download_dir: str | None = option(
        None, "where fetched models are kept; default: the source's own place"
    )
    tokenizer: str | None = option(
        None, "tokenizer directory, or a name as for the model; default: the model's"
    )
    chat_template: str | None = option(
        None, "file of a chat template, or the template itself; default: the model's"
    )
    model_impl: str = option(
        "auto",
        "whose code computes the model: native, a description over the engine's layers; a "
        "library's, such as transformers; auto, the library's where no description exists",
    )
    dtype: str = option("auto", "type of weights and activations", choices=DTYPES)
    quantization: str | None = option(None, "quantization method, such as int8")
    quantization_cache_dir: str | None = option(
        None,
        "keep weights here that a method such as int4 has quantized on the host, for the next "
        "start; default: nowhere",
    )
    quantization_cache_bytes: int = option(
        2**36, "most that quantization_cache_dir takes; what was unused for longest goes", low=1
    )
    load_format: str = option(
        "safetensors", "where weights come from", choices=("safetensors", "dummy")
    )
    offload_weights: str | None = option(
        None,
        "keep weights whose names match this regular expression in host memory, and copy them to "
        "the device in each step, a layer ahead",
    )
    cpu_offload_gb: float = option(
        0.0,
        "GiB of each device's memory to save so, by as many layers as it takes; 0: none",
        low=0,
        high=2**20,
    )
    check_weights: bool | None = option(
        None,
        "refuse files whose weights hold NaN or infinity, by the weight's name; default: "
        "files that were not found sound before",
    )
    hf_overrides: dict[str, Any] = option({}, "entries that replace those of config.json")
    max_model_len: int | None = option(
        None, "longest sequence, prompt and output; default: the model's", low=2, high=2**24
    )
    generation_config: str = option(
        "auto",
        "sampling defaults: auto, the model's generation_config.json; none; or such a file",
    )
    override_generation_config: dict[str, Any] = option(
        {}, "entries that replace those of generation_config.json"
    )
    seed: int = option(0, "seed of dummy weights and of unseeded requests", low=0, high=2**63 - 1)

    platform: str = option("auto", "platform to run on, or auto")
    platform_options: dict[str, Any] = option({}, "options of the chosen platform")
    kernel: dict[str, str] = option({}, "forced candidates by slot, as SLOT=NAME or SLOT=NAME,NAME")
    check_candidates: bool = option(
        False, "check shape, type and NaN of every result of every operation; record no graphs"
    )
    require_native: bool = option(False, "refuse to run any slot on its plain reference")
    batch_invariant: bool = option(
        False, "compute every row by operations whose result no other row of the batch changes"
    )
    disable_plugins: list[str] = option([], "names of plugins to leave out")
    enable_sleep_mode: bool = option(
        False, "take host memory for a sleep at level 1 at the start, so that the first is short"
    )

    tensor_parallel_size: int = option(
        1, "devices that share every layer of the model, one process each", low=1, high=1024
    )
    enable_expert_parallel: bool = option(
        False, "of models with experts: spread them, whole, over the tensor_parallel_size devices"
    )
    enable_eplb: bool = option(
        False, "with expert parallelism: move experts between devices as their tokens demand"
    )
    num_redundant_experts: int = option(
        0, "with enable_eplb: second places of experts, in each layer", low=0, high=4096
    )
    eplb_step_interval: int = option(
        1000, "with enable_eplb: steps from one look at the experts' tokens to the next", low=1
    )
    pipeline_parallel_size: int = option(
        1, "stages that hold the layers of the model one after the other", low=1, high=1024
    )
    pipeline_layers: list[int] = option(
        [], "layers of each stage, as 10,12; default: as many in each"
    )
    pipeline_steps: int | None = option(
        None, "steps under way at once in a pipeline; default: one for each stage", low=1, high=64
    )
    distributed_executor_backend: str | None = option(
        None,
        "what runs the ranks: uni, in this process; mp, in processes of this host; or a plugin's, "
        "such as ray; default: mp for several ranks, else uni",
    )

    nnodes: int = option(
        1, "hosts that share the ranks evenly, this one the first", low=1, high=1024
    )
    master_addr: str = option("127.0.0.1", "address of this host at which the others find it")
    master_port: int = option(29501, "port that belongs to it", low=0, high=65535)
    cluster_secret_file: str | None = option(
        None, "file of the secret that all hosts of an engine know; needed for several"
    )

    block_size: int | None = option(None, "tokens per KV-cache block", low=1, high=1024)
    kv_cache_dtype: str = option(
        "auto", "type of the KV cache; auto: the model's", choices=(*DTYPES, *QUANTIZED)
    )
    kv_cache_memory_bytes: int | None = option(
        None, "memory for the KV cache; default: decided by the platform", low=0
    )
    memory_share: float | None = option(
        None,
        "share of the memory granted for the KV cache that is taken; default: all, or an equal one "
        "beside other models of a server",
        low=0.001,
        high=1,
    )
    enable_prefix_caching: bool = option(True, "reuse the KV cache of equal prefixes")
    state_cache_mode: str = option(
        "none",
        "of models with states: which are kept for equal prefixes; align, those where steps end; "
        "all, those where blocks end",
        choices=("none", "align", "all"),
    )
    state_dtype: str = option("auto", "type of kept states; auto: float32", choices=DTYPES)
    conv_state_dtype: str = option(
        "auto", "type of kept inputs of convolutions; auto: the model's", choices=DTYPES
    )

    max_num_seqs: int = option(256, "most requests running at once", low=1, high=65536)
    max_num_batched_tokens: int | None = option(
        None, "token budget of one step, prefill and decode together", low=1, high=2**22
    )
    enforce_eager: bool = option(False, "record no graphs and compile nothing")
    optimization_level: int = option(
        DEFAULT_LEVEL,
        levels_text(),
        low=0,
        high=len(LEVELS) - 1,
    )
    scheduling_policy: str = option(
        "auto",
        "order of waiting requests: fcfs, by arrival; fair, tenants in turns, each by arrival; "
        "auto, fair where a server has several API keys, else fcfs",
        choices=("auto", "fair", "fcfs", "priority"),
    )
    async_scheduling: bool | None = option(
        None, "plan the next step while one runs; default: where the platform is asynchronous"
    )

    pooling: str | None = option(
        None,
        "how embeddings are made of hidden states; default: as the checkpoint says, if it does",
        choices=POOLING_KINDS,
    )
    max_logprobs: int = option(20, "most log probabilities a request may ask for", low=0, high=1000)
    logits_processors: list[str] = option(
        [], "stages over logits that requests may use: a plugin's name, or MODULE:CLASS"
    )
    skip_tokenizer_init: bool = option(False, "work on token ids only")
    allow_special_tokens_in_text: bool = option(
        False, "let control tokens that messages and texts to embed spell be those tokens"
    )

    enable_lora: bool = option(False, "let requests name low-rank adapters (LoRA)")
    lora_modules: dict[str, str] = option(
        {}, "adapters that are loaded at the start, by name, as NAME=DIRECTORY"
    )
    max_loras: int = option(
        8, "different adapters that run at once; each has a place on the device", low=1, high=1024
    )
    max_loras_ahead: int | None = option(
        None,
        "further places on the device, to which adapters of waiting requests come ahead of time; "
        "default: an eighth of max_loras, at least one",
        low=0,
        high=1024,
    )
    max_lora_rank: int = option(16, "highest rank of an adapter", low=1, high=1024)
    lora_host_memory_gib: float | None = option(
        None,
        "GiB of host memory that loaded adapters may take in a process; default: a quarter of the "
        "host's, divided among ranks",
        low=0.001,
    )
    lora_target_modules: list[str] = option(
        [], "matrices that adapters may change, by the ends of their names, as q_proj; default: all"
    )

    speculative_config: dict[str, Any] | None = option(
        None,
        "drafts that a step verifies: a method, such as auto, or JSON with method, "
        "num_speculative_tokens (the most; as many are made as pay, unless adaptive is false) and "
        "the method's own options; default: none",
    )

    structured_output_backend: str = option("auto", "what compiles grammars, such as llguidance")
    structured_output_max_blanks: int = option(
        1, "most blanks, tabs and newlines where JSON allows any", low=0, high=40
    )
    structured_output_one_of: str = option(
        "exclusive",
        "oneOf whose branches may hold together: exclusive refuses it; judged takes it for anyOf "
        "and lets a request fail whose finished text follows several branches",
        choices=("exclusive", "judged"),
    )
    structured_output_cache_bytes: int = option(256 * 2**20, "memory for compiled grammars", low=0)
    structured_output_timeout_s: float = option(
        10.0, "seconds that a request waits for its grammar to be compiled", low=0.01
    )

    max_num_queued_reqs: int | None = option(
        65_536, "most sequences waiting to be run; more are refused; null: unbounded", low=1
    )
    max_queued_tokens: int | None = option(
        2**25, "most tokens of waiting sequences; more are refused; null: unbounded", low=1
    )
    engine_stall_timeout_s: float = option(
        120.0, "seconds without the end of a step after which an engine counts as dead", low=0.1
    )
    load_timeout_s: float = option(
        3600.0, "seconds that the processes of tensor parallelism may take to load", low=1
    )
    engine_restarts: int = option(
        3, "how many times an engine process that died is started again", low=0
    )

    def __post_init__(self) -> None:
        check_options(self)
        check_drafts(self.speculative_config, MAX_SPECULATIVE_TOKENS)
        _check_offload(self)

    @property
    def num_ranks(self) -> int:
        """Workers that compute each step together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def mesh_at(self, rank: int) -> Mesh:
        """Return the place of a rank in the mesh of stages and tensor-parallel ranks."""
        sizes = (self.pipeline_parallel_size, self.tensor_parallel_size)
        return Mesh.at(rank, *sizes, self.enable_expert_parallel)

    @property
    def offloads(self) -> bool:
        """Whether weights are kept in host memory."""
        return self.offload_weights is not None or self.cpu_offload_gb > 0

    @property
    def loras_ahead(self) -> int:
        """Places for adapters of waiting requests; 0 without adapters."""
        own = max(1, self.max_loras // 8) if self.max_loras_ahead is None else self.max_loras_ahead
        return own if self.enable_lora else 0

    @property
    def fetches(self) -> bool:
        """Whether weights or adapters come from host memory beside steps."""
        return self.offloads or self.loras_ahead > 0

    @property
    def num_steps_in_flight(self) -> int:
        """Steps that are started before the result of the oldest is read."""
        if self.pipeline_parallel_size > 1:
            return self.pipeline_steps or self.pipeline_parallel_size
        return 2 if self.async_scheduling else 1

    @property
    def num_speculative_tokens(self) -> int:
        """Most drafts of a request and step; 0 without speculation."""
        if not self.speculative_config:
            return 0
        if (tree := self.draft_tree) is not None:
            return len(tree.paths)
        number = self.speculative_config.get("num_speculative_tokens")
        return ADAPTIVE_SPECULATIVE_TOKENS if number is None else int(number)

    @property
    def draft_tree(self) -> DraftTree | None:
        """The shape of drafts that are a tree; None for chains."""
        return tree_of(self.speculative_config or {})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build from names and values, as a YAML file or keyword arguments give them.

        Raises:
            ConfigError: A name is unknown (close names are suggested) or a value is bad.
        """
        [own] = split_options(values, (cls,))
        return cls(**own)

    def resolve_changes(self, changes: Iterable[Change]) -> Self:
        """Return a copy with the changes; raises ConfigError for a value out of bounds."""
        values: dict[str, Any] = {change.field: change.value for change in changes}
        return replace(self, **values)


def _decided(name: str) -> Any:
    """Declare that a field of `EngineConfig` is no longer None."""
    return field(metadata=EngineConfig.__dataclass_fields__[name].metadata, kw_only=True)


@dataclass(frozen=True, slots=True)
class ResolvedConfig(EngineConfig):
    """A configuration in which all sizes are decided: by the user, the model, the platform or core.

    Raises:
        ConfigError: A value is undecided, or as `EngineConfig` says.
    """

    max_model_len: int = _decided("max_model_len")
    distributed_executor_backend: str = _decided("distributed_executor_backend")
    block_size: int = _decided("block_size")
    max_num_batched_tokens: int = _decided("max_num_batched_tokens")
    async_scheduling: bool = _decided("async_scheduling")

    @classmethod
    def of(cls, config: EngineConfig) -> ResolvedConfig:
        """Return the same configuration, all of whose sizes are decided."""
        return cls(**{f.name: getattr(config, f.name) for f in fields(config)})


def check_options(config: Any) -> None:
    """Check a dataclass whose fields are declared with `option`; for its `__post_init__`.

    Raises:
        ConfigError: A value has the wrong type or lies outside its bounds.
    """
    hints = typing.get_type_hints(type(config))
    for f in fields(config):
        _check_type(f.name, getattr(config, f.name), hints[f.name])
        _check_bounds(f, getattr(config, f.name))


def _check_offload(config: EngineConfig) -> None:
    """Check what keeps weights in host memory."""
    if config.offload_weights is None:
        return
    if config.cpu_offload_gb:
        raise ConfigError(
            "offload_weights and cpu_offload_gb both say which weights stay in host memory; "
            "leave one of them out"
        )
    try:
        re.compile(config.offload_weights)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"offload_weights {config.offload_weights!r} is no regular expression: {error}"
        ) from None


def split_options(values: Mapping[str, Any], configs: Sequence[type[Any]]) -> list[dict[str, Any]]:
    """Sort names and values by the configuration class that knows the name.

    A word for an option with entries is the one that `LONE` names.

    Raises:
        ConfigError: No class knows a name; close names are suggested.
    """
    owners = {f.name: i for i, config in enumerate(configs) for f in fields(config)}
    parts: list[dict[str, Any]] = [{} for _ in configs]
    for name, value in values.items():
        name = name.replace("-", "_")
        if name not in owners:
            raise ConfigError(f"unknown option {name}{did_you_mean(name, owners)}")
        lone = name in LONE and isinstance(value, str)
        parts[owners[name]][name] = {LONE[name]: value} if lone else value
    return parts


def _check_type(name: str, value: Any, hint: Any) -> None:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if not any(_fits(value, option) for option in options):
        wanted = " or ".join(map(_type_name, options))
        raise ConfigError(f"{name} must be {wanted}, not {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value, with all its entries, is of a type. No bool is a number."""
    if hint is Any:
        return True
    origin = typing.get_origin(hint) or hint
    if isinstance(value, bool):
        return origin is bool
    if not isinstance(value, (int, float) if origin is float else origin):
        return False
    kinds = typing.get_args(hint)
    if isinstance(value, dict):
        return all(
            _fits(entry, kind)
            for pair in value.items()
            for entry, kind in zip(pair, kinds, strict=True)
        )
    return not isinstance(value, list) or all(_fits(entry, kinds[0]) for entry in value)


def _type_name(hint: Any) -> str:
    if hint is type(None):
        return "null"
    return str(hint).replace("typing.", "") if typing.get_args(hint) else str(hint.__name__)


def _check_bounds(f: Field[Any], value: Any) -> None:
    choices, low, high = (f.metadata[key] for key in ("choices", "low", "high"))
    if choices is not None and value is not None and value not in choices:
        raise ConfigError(f"{f.name} must be one of {', '.join(choices)}, not {value!r}")
    if value is None or low is None:
        return
    if not value >= low or (high is not None and value > high):  # so that NaN is refused too
        limit = f"between {low} and {high}" if high is not None else f"at least {low}"
        raise ConfigError(f"{f.name} must be {limit}, not {value}")
