"""The engine's configuration: one frozen record, one name per option everywhere.

A field `max_num_seqs` is `--max-num-seqs` on the command line, `max_num_seqs:` in a YAML file and
a keyword of `LLM(...)`. None means "decided at start-up"; `resolve_changes` applies what platform
and model decided, and returns a copy. Standard library only.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from hotshoe.errors import ConfigError
from hotshoe.platform import Change
from hotshoe.suggest import did_you_mean

DTYPES = ("auto", "float32", "bfloat16", "float16")


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

    model: str = option("demo", "model directory, or a name that a plugin knows, such as demo")
    tokenizer: str | None = option(None, "tokenizer directory; default: the model's")
    dtype: str = option("auto", "type of weights and activations", choices=DTYPES)
    quantization: str | None = option(None, "quantisation method, such as int8")
    load_format: str = option(
        "safetensors", "where weights come from", choices=("safetensors", "dummy")
    )
    hf_overrides: dict[str, Any] = option({}, "entries that replace those of config.json")
    max_model_len: int | None = option(
        None, "longest sequence, prompt and output; default: the model's", low=1, high=2**24
    )
    seed: int = option(0, "seed of dummy weights and of unseeded requests", low=0, high=2**63 - 1)

    platform: str = option("auto", "platform to run on, or auto")
    platform_options: dict[str, Any] = option({}, "options of the chosen platform")
    kernel: dict[str, str] = option({}, "forced candidates by slot, as SLOT=NAME")
    require_native: bool = option(False, "refuse to run any slot on its plain reference")
    disable_plugins: list[str] = option([], "names of plugins to leave out")

    block_size: int | None = option(None, "tokens per KV-cache block", low=1, high=1024)
    kv_cache_dtype: str = option("auto", "type of the KV cache", choices=DTYPES)
    kv_cache_memory_bytes: int | None = option(
        None, "memory for the KV cache; default: decided by the platform", low=0
    )
    enable_prefix_caching: bool = option(True, "reuse the KV cache of equal prefixes")

    max_num_seqs: int = option(256, "most requests running at once", low=1, high=65536)
    max_num_batched_tokens: int = option(
        2048, "token budget of one step, prefill and decode together", low=1, high=2**22
    )
    scheduling_policy: str = option(
        "fcfs", "order of waiting requests", choices=("fcfs", "priority")
    )
    async_scheduling: bool | None = option(
        None, "plan the next step while one runs; default: where the platform is asynchronous"
    )

    max_logprobs: int = option(20, "most log probabilities a request may ask for", low=0, high=1000)
    skip_tokenizer_init: bool = option(False, "work on token ids only")

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for f in fields(self):
            _check_type(f.name, getattr(self, f.name), hints[f.name])
            _check_bounds(f, getattr(self, f.name))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> EngineConfig:
        """Build from names and values, as a YAML file or keyword arguments give them.

        Raises:
            ConfigError: A name is unknown (close names are suggested) or a value is bad.
        """
        known = {f.name for f in fields(cls)}
        normal = {name.replace("-", "_"): value for name, value in values.items()}
        for name in normal:
            if name not in known:
                raise ConfigError(f"unknown option {name}{did_you_mean(name, known)}")
        return cls(**normal)

    def resolve_changes(self, changes: Iterable[Change]) -> EngineConfig:
        """Return a copy with the changes applied."""
        values: dict[str, Any] = {change.field: change.value for change in changes}
        return replace(self, **values)


def _check_type(name: str, value: Any, hint: Any) -> None:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for candidate in options:
        origin = typing.get_origin(candidate) or candidate
        if isinstance(value, origin) and not (origin is int and isinstance(value, bool)):
            return
    wanted = " or ".join(
        "null" if o is type(None) else getattr(o, "__name__", str(o)) for o in options
    )
    raise ConfigError(f"{name} must be {wanted}, not {value!r}")


def _check_bounds(f: Field[Any], value: Any) -> None:
    choices, low, high = (f.metadata[key] for key in ("choices", "low", "high"))
    if choices is not None and value not in choices:
        raise ConfigError(f"{f.name} must be one of {', '.join(choices)}, not {value!r}")
    if value is None or low is None:
        return
    if value < low or (high is not None and value > high):
        limit = f"between {low} and {high}" if high is not None else f"at least {low}"
        raise ConfigError(f"{f.name} must be {limit}, not {value}")
