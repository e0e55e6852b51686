"""Which models a server has at its start, each with its own options: from flags and YAML.

Names are those of `EngineConfig`, and of the fields of `ServerConfig` that concern one model.
What a model leaves open is as it stands beside `models`, for all of them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hotshoe.cli.options import as_flag
from hotshoe.config import EngineConfig
from hotshoe.errors import CheckpointError, ConfigError, UserError
from hotshoe.suggest import did_you_mean
from hotshoe_server.config import ServerConfig
from hotshoe_server.vllm_drafts import meant

_log = logging.getLogger(__name__)

#: Fields of `ServerConfig` that may differ between models.
OF_A_MODEL = (
    "served_model_name",
    "tool_call_parser",
    "reasoning_parser",
    "trust_request_chat_template",
    "default_chat_template_kwargs",
    "reasoning_field",
    "enable_auto_tool_choice",
    "clip_max_tokens",
)
CLASSES = (EngineConfig, ServerConfig)
MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """One model that a server is to have; `config` is the server's, as it is for this model."""

    config: ServerConfig
    engine: EngineConfig

    @property
    def names(self) -> list[str]:
        """Names that requests may use; the first is the model's."""
        return names_of(self.config, self.engine)


def names_of(config: ServerConfig, engine: EngineConfig) -> list[str]:
    """Return the names that requests may use for a model, each once."""
    return list(dict.fromkeys(config.served_model_name)) or [model_name(engine.model)]


def make_plans(engine: EngineConfig, config: ServerConfig, has_model: bool) -> list[Plan]:
    """Return the models in order.

    Args:
        engine: Options of engines, and the model that stands beside `models`.
        config: Options of the server.
        has_model: Whether such a model was named. If not, it is served only where there are no
            others.

    Raises:
        ConfigError: An option of a model is bad, two models have a name in common, or none takes
            the adapters that requests may name.
    """
    engine = that_sleeps(engine, config)
    plans = [] if config.models and not has_model else [Plan(config, engine)]
    plans += [plan_of(name, own, engine, config) for name, own in config.models.items()]
    check_names(plans)
    if config.finds_adapters and not any(plan.engine.enable_lora for plan in plans):
        raise ConfigError(
            "lora_dir and lora_resolver need a model that takes adapters: enable_lora"
        )
    return shared_memory(plans, config.max_resident_models)


def plan_of(name: str, own: Any, engine: EngineConfig, config: ServerConfig) -> Plan:
    """Return one model.

    Args:
        name: The first that requests use for it.
        own: The model, as MODEL of the command line, or a mapping of options.
        engine: Options that it leaves open.
        config: Those of the server.

    Raises:
        ConfigError: It has no model, or an option is unknown or bad.
    """
    place = f"models.{name}"
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise ConfigError(f"a name of a model has 1 to {MAX_NAME_CHARS} printable characters")
    options = {"model": own} if isinstance(own, str) else own
    if not isinstance(options, Mapping) or "model" not in options:
        raise ConfigError(f"{place}: name the model, as in `{name}: {{model: /path/to/it}}`")
    values = {str(key).replace("-", "_"): value for key, value in options.items()}
    known = {f.name for f in fields(EngineConfig)}.union(OF_A_MODEL)
    for key in values:
        if key not in known:
            raise ConfigError(f"{place}: unknown option {key}{did_you_mean(key, known)}")
    if "speculative_config" in values:
        values["speculative_config"] = _drafts(values["speculative_config"])
    values = {key: as_flag(key, value, CLASSES) for key, value in values.items()}
    of_server = {key: values.pop(key) for key in OF_A_MODEL if key in values}
    try:
        aliases = of_server.pop("served_model_name", [])
        names = [name, *(alias for alias in aliases if alias != name)]
        changed = replace(config, **of_server, models={}, served_model_name=names)
        return Plan(changed, replace(engine, **values))
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    except TypeError:
        raise ConfigError(f"{place}: served_model_name must be a list of names") from None


def _drafts(value: Any) -> Any:
    """Return drafts by the names that they have here, also where they have vLLM's."""
    if not isinstance(value, (str, Mapping)):
        return value
    found = meant(value if isinstance(value, str) else json.dumps(value, default=str), _log.warning)
    return found if isinstance(value, str) else json.loads(found)


def that_sleeps(engine: EngineConfig, config: ServerConfig) -> EngineConfig:
    """Return options of an engine, made ready for sleep where models take turns."""
    return engine if config.max_resident_models is None else replace(engine, enable_sleep_mode=True)


@contextmanager
def one_of(plans: Sequence[Plan], plan: Plan) -> Iterator[None]:
    """Let an error of one of several models name it, and one of a further model, which may be
    none, say that there are others.

    Raises:
        CheckpointError: That was one.
        ConfigError: That was another mistake of the user.
    """
    try:
        yield
    except UserError as error:
        if len(plans) == 1:
            raise
        said = f"models.{plan.names[0]}: {error}"
        is_model = isinstance(error, CheckpointError)
        if plan in plans[1:] and is_model:
            names = ", ".join(other.names[0] for other in plans)
            said += (
                "; each MODEL, --model and --models is a model of its own, so these are "
                f"{len(plans)} ({names}): leave out what is no model"
            )
        raise (CheckpointError if is_model else ConfigError)(said) from error


def check_names(plans: Sequence[Plan]) -> None:
    """Refuse two models of one name, and an adapter with the name of a model or of an adapter of
    another model.

    Raises:
        ConfigError: There are such.
    """
    taken: dict[str, str] = {}
    for plan in plans:
        for name in plan.names:
            if name in taken:
                raise twice(name, taken[name], plan.engine.model)
        taken |= dict.fromkeys(plan.names, plan.engine.model)
    holders: dict[str, str] = {}
    for plan in plans:
        for name in plan.engine.lora_modules:
            if name in taken:
                raise ConfigError(
                    f"lora_modules of {plan.names[0]}: a model itself is named {name}; "
                    "give the adapter another name"
                )
            if name in holders:
                raise ConfigError(
                    f"two models have an adapter {name}: {holders[name]} and {plan.names[0]}; give "
                    "--lora-modules to one of them, as in --model NAME=MODEL,lora_modules={}"
                )
        holders |= dict.fromkeys(plan.engine.lora_modules, plan.names[0])


def twice(name: str, first: str, second: str) -> ConfigError:
    """Return the error of two models with one name."""
    return ConfigError(
        f"two models are named {name}: {first} and {second}; "
        "give them names, as in --model NAME=MODEL"
    )


def shared_memory(plans: Sequence[Plan], max_resident: int | None) -> list[Plan]:
    """Let models that are awake at once take equal shares of the memory for caches.

    Each takes a share of what those before it have left. The last plan loads first.
    """
    num_awake = len(plans) if max_resident is None else min(max_resident, max(len(plans), 2))
    if num_awake == 1:
        return list(plans)
    found = []
    for place, plan in enumerate(reversed(plans)):
        share = 1 / (num_awake - place) if place < num_awake else 1.0
        own = plan.engine.memory_share
        engine = replace(plan.engine, memory_share=share if own is None else own)
        found.append(replace(plan, engine=engine))
    return found[::-1]


def model_name(model: str) -> str:
    """Return the name of a model: of a directory, its last part."""
    return Path(model).name if Path(model).is_dir() else model


def rewrite_models(words: Sequence[str]) -> list[str]:
    """Write `A B --model C=MODEL,option=value` as `A --models {"B": ..} --models {"C": ..}`.

    Only words before the first flag are models, as later ones may be further values of a flag.

    Raises:
        ConfigError: Two of the further models have one name, or an option has no value.
    """
    further: dict[str, str] = {}

    def one_more(name: str, own: Mapping[str, Any]) -> list[str]:
        if name in further:
            raise twice(name, further[name], own["model"])
        further[name] = own["model"]
        return ["--models", json.dumps({name: own})]

    found: list[str] = []
    rest = list(words)
    while rest and not rest[0].startswith("-"):
        word = rest.pop(0)
        found += one_more(model_name(word), {"model": word}) if found else [word]
    has_model = bool(found)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        of_models = flag in ("--model", "--models") or flag.startswith("--models.")
        if not of_models or not (equals or rest):
            found.append(word)
            continue
        value = value if equals else rest.pop(0)
        if flag != "--model":
            found += _entry(flag, value)
        elif "=" in value:
            found += one_more(*_named(value))
        elif has_model:
            found += one_more(model_name(value), {"model": value})
        else:
            found += [flag, value]
            has_model = True
    return found


def _entry(flag: str, value: str) -> list[str]:
    """Write `--models NAME=MODEL` as an object, beside which options of its own may stand."""
    _, _, path = flag.partition(".")
    name, equals, model = (path, "=", value) if path else value.partition("=")
    whole = name and equals and "." not in name and value[0] != "{" and model[:1] != "{"
    return ["--models", json.dumps({name: {"model": model}})] if whole else [flag, value]


def _named(text: str) -> tuple[str, dict[str, Any]]:
    """Read `NAME=MODEL,option=value,...`.

    Raises:
        ConfigError: An option has no value.
    """
    name, _, rest = text.partition("=")
    model, *options = _split(rest)
    own: dict[str, Any] = {"model": model}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise ConfigError(
                f"--model {text}: {option!r} is no option=value; a YAML file (--config) takes "
                "values with commas"
            )
        try:
            own[key] = json.loads(value)
        except ValueError:
            own[key] = value
    return name, own


def _split(text: str) -> list[str]:
    """Split at commas, but for those within objects and lists."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts
