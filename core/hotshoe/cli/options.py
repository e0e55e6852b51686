"""Flags generated from EngineConfig and SamplingParams, and the way back from flags to these.

A flag that was not given is absent from the namespace, so that a YAML file given by `--config`
can fill it: what the command line says wins over the file, the file over the defaults. No engine
or sampling option is written down twice; the tables below only sort and explain them.
"""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from hotshoe.cli.parser import EntryAction, ListAction, integer, json_or_text
from hotshoe.config import LONE, EngineConfig, split_options
from hotshoe.errors import ConfigError
from hotshoe.models.config import merged
from hotshoe.models.generation import FIELDS
from hotshoe.types import SamplingParams

# Group title -> first field of the group; a group reaches to the next one's first field.
ENGINE_GROUPS = {
    "model": "model",
    "platform": "platform",
    "KV cache": "block_size",
    "scheduling": "max_num_seqs",
    "limits": "max_logprobs",
    "speculation": "speculative_config",
    "structured output": "structured_output_backend",
    "load and faults": "max_num_queued_reqs",
}
# Sampling fields that are flags. `seed` is missing as `--seed` is the engine's, which seeds
# requests too; the others make sense only to programs.
SAMPLING_HELP = {
    "n": "sequences per prompt",
    "temperature": "randomness; 0 always takes the most likely token",
    "top_k": "keep the K most likely tokens; 0 keeps all",
    "top_p": "keep the most likely tokens that reach this probability together",
    "min_p": "drop tokens less likely than this times the most likely one",
    "presence_penalty": "lowers the logits of tokens that were generated already",
    "frequency_penalty": "lowers the logits of generated tokens, by their count",
    "repetition_penalty": "divides the logits of tokens seen in prompt or output",
    "max_tokens": "most tokens to generate",
    "min_tokens": "generate at least this many before the text may end",
    "stop": "string that ends the text",
    "stop_token_ids": "token id that ends the text",
    "include_stop_str_in_output": "keep the stop string in the text",
    "ignore_eos": "go on after the end-of-sequence token",
    "skip_special_tokens": "leave special tokens out of the text",
    "logprobs": "report this many likely tokens per position, in JSON output",
    "bad_words": "string that is never completed",
    "adapter": "adapter (LoRA) that changes the model, by its name",
}
#: What the commands use where SamplingParams has another default.
SAMPLING_DEFAULTS: dict[str, Any] = {"max_tokens": 128}

#: Short forms of flags, by field.
SHORT = {"optimization_level": "-O"}

METAVARS = {int: "N", float: "X", str: "TEXT"}

_ABSENT = argparse.SUPPRESS
_DISABLED = "disable_plugins"


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, `--config` and every field of EngineConfig, in groups."""
    model = next(f for f in fields(EngineConfig) if f.name == "model")
    parser.add_argument("model", nargs="?", metavar="MODEL", default=_ABSENT, help=_help(model))
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of options")
    add_option_flags(parser, EngineConfig, ENGINE_GROUPS, skip=("model",))


def add_option_flags(
    parser: argparse.ArgumentParser,
    config: type[Any],
    groups: Mapping[str, str],
    skip: Iterable[str] = (),
) -> None:
    """Add a flag for every field of a configuration class; `groups` are as ENGINE_GROUPS."""
    hints = typing.get_type_hints(config)
    starts = {first: title for title, first in groups.items()}
    group: Any = parser
    for f in fields(config):
        if f.name in starts:
            group = parser.add_argument_group(starts[f.name])
        if f.name not in skip:
            _add(group, f.name, hints[f.name], _help(f), f.metadata["choices"])


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the fields of SamplingParams that SAMPLING_HELP explains."""
    group = parser.add_argument_group("sampling")
    hints = typing.get_type_hints(SamplingParams)
    known = {f.name: f for f in fields(SamplingParams)}
    for name, text in SAMPLING_HELP.items():
        default = SAMPLING_DEFAULTS.get(name, _default(known[name]))
        shown = f" (default: the model's, or {default})" if name in FIELDS else _shown(default)
        _add(group, name, hints[name], text + shown)


def engine_config(args: argparse.Namespace, **overrides: Any) -> EngineConfig:
    """Build the configuration from the file that `--config` names, the flags, and `overrides`.

    Raises:
        ConfigError: The file is unreadable or an option in it unknown; a value is bad.
    """
    [config] = read_configs(args, (EngineConfig,), **overrides)
    assert isinstance(config, EngineConfig)
    return config


def read_configs(
    args: argparse.Namespace, configs: Sequence[type[Any]], **overrides: Any
) -> list[Any]:
    """Build several configurations, whose options share one file and one command line.

    Raises:
        ConfigError: As for `engine_config`.
    """
    parts = split_options(merged(given_options(args, configs), overrides), configs)
    return [config(**part) for config, part in zip(configs, parts, strict=True)]


def given_options(args: argparse.Namespace, configs: Sequence[type[Any]]) -> dict[str, Any]:
    """Return what the file that `--config` names and the flags say, nothing filled in.

    `args.config` may have the file's options instead of its name.

    Raises:
        ConfigError: The file is unreadable.
    """
    file = getattr(args, "config", None) or {}
    values = file if isinstance(file, Mapping) else read_yaml(file)
    names = {f.name for config in configs for f in fields(config)}
    values = {name: as_flag(name, value, configs) for name, value in values.items()}
    return merged(values, {name: value for name, value in vars(args).items() if name in names})


def disabled_in(path: Path) -> list[str]:
    """Return the plugins that a file leaves out; what is no list of names, its command refuses.

    Raises:
        ConfigError: The file is unreadable.
    """
    names = as_flag(_DISABLED, read_yaml(path).get(_DISABLED), (EngineConfig,))
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def as_flag(name: str, value: Any, configs: Sequence[type[Any]]) -> Any:
    """Read a value of a file as a flag's: a scalar for a list of one, `32k` for a number."""
    if isinstance(value, str) and name in LONE:
        return {LONE[name]: value}
    hint = next((h for c in configs if (h := typing.get_type_hints(c).get(name))), None)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, str) and int in kinds and str not in kinds:
        try:
            return _reader(int, types.NoneType in kinds)(value)
        except ValueError:
            return value  # which `check_options` refuses
    listed = any(typing.get_origin(kind) is list for kind in kinds)
    return [value] if listed and isinstance(value, (str, int)) else value


def sampling_params(
    args: argparse.Namespace, defaults: Mapping[str, Any] | None = None, **overrides: Any
) -> SamplingParams:
    """Build the sampling parameters from flags, where these are silent from the model's defaults.

    Raises:
        RequestError: A value is out of range.
    """
    flags = {name: value for name, value in vars(args).items() if name in SAMPLING_HELP}
    return SamplingParams(**{**SAMPLING_DEFAULTS, **(defaults or {}), **flags, **overrides})


def _add(
    group: argparse._ArgumentGroup,
    name: str,
    hint: Any,
    text: str,
    choices: Iterable[str] | None = None,
) -> None:
    """Add one flag whose form follows from the field's type."""
    types_of = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(t for t in types_of if t is not types.NoneType)
    origin = typing.get_origin(kind) or kind
    arguments = typing.get_args(kind)
    form: dict[str, Any]
    if origin is bool:
        form = {"action": argparse.BooleanOptionalAction}
    elif origin is dict:
        parse = str if arguments[1] is str else json_or_text
        form = {"action": EntryAction, "parse": parse, "metavar": "KEY=VALUE"}
        form["lone"] = LONE.get(name)
        text += "; may be repeated"
    elif origin in (list, tuple):
        form = {"action": ListAction, "parse": arguments[0], "metavar": METAVARS[arguments[0]]}
        text += "; may be repeated"
    else:
        form = {"type": _reader(origin, types.NoneType in types_of), "choices": choices}
        form["metavar"] = None if choices else METAVARS[origin]
    flags = [SHORT[name]] if name in SHORT else []
    flags.append("--" + name.replace("_", "-"))
    group.add_argument(*flags, default=_ABSENT, help=text, **form)


def _reader(kind: Any, optional: bool) -> Any:
    """Return what reads a value; "auto" is none of a number that is decided at start-up."""
    if kind is not int:
        return kind

    def number(text: str) -> int | None:
        return None if optional and text in ("auto", "-1") else integer(text)

    return number


def _help(field: Field[Any]) -> str:
    return str(field.metadata["help"]).replace("%", "%%") + _shown(_default(field))


def _default(field: Field[Any]) -> Any:
    return None if field.default is MISSING else field.default


def _shown(default: Any) -> str:
    return "" if default in (None, ()) else f" (default: {default})"


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Return the options of a file, their names with underscores.

    Raises:
        ConfigError: It is unreadable, or no such file.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that stands twice in one mapping, of which the last would win."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            found: set[tuple[str, str]] = set()
            for key, _ in node.value:
                entry = (key.tag, str(key.value))
                if entry in found:
                    problem = f"{key.value!r} stands there twice; leave one out"
                    raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
                found.add(entry)
            return super().construct_mapping(node, deep)

    try:
        values = Loader(path.read_text(encoding="utf-8")).get_single_data()
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"--config: cannot read {path}: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path} must hold `option: value` lines")
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name in found:
            raise ConfigError(f"{path} has {name} twice, with `-` and with `_`; leave one out")
        found[name] = value
    return found
