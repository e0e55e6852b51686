"""Options of a file that was written for `vllm serve`, as options of `hotshoe serve`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotshoe.cli.parser import Parser
from hotshoe.models.config import merged
from hotshoe_server.vllm_flags import ADAPTERS, DRAFTS, FLAGS, VALUES

_FLAGS = {flag.name: flag for flag in FLAGS if flag.name != "--model"}
#: What vLLM does unless a file says false; of all others, false asks for nothing.
_ON = ("enable_chunked_prefill",)


def own_options(values: Mapping[str, Any], parser: Parser) -> dict[str, Any]:
    """Return the options of a file by the names that they have here; own ones win.

    Args:
        values: By name, with underscores.
        parser: Of `hotshoe serve`; it reads the flags that stand for vLLM's.

    Raises:
        ConfigError: An option of vLLM's cannot be honored.
    """
    if isinstance(models := values.get("models"), Mapping):
        values = {**values, "models": {name: _model(of, parser) for name, of in models.items()}}
    own = {
        name: _here(name, value) for name, value in values.items() if not _is_theirs(name, value)
    }
    words = [word for name in values if name not in own for word in _words(name, values[name])]
    if not words:
        return own
    found = vars(parser.parse(words))
    return merged({name: value for name, value in found.items() if name != "config"}, own)


def _model(own: Any, parser: Parser) -> Any:
    """Return the options of one of several models by the names that they have here."""
    if isinstance(own, str):
        return {"model": own}  # beside which flags may name options
    if not isinstance(own, Mapping):
        return own
    return own_options({str(key).replace("-", "_"): own[key] for key in own}, parser)


def _is_theirs(name: str, value: Any) -> bool:
    """Tell whether the command line's table says what an option stands for."""
    flag = _flag(name)
    drafts = flag == DRAFTS and isinstance(value, Mapping)
    return drafts or (flag == ADAPTERS and isinstance(value, list)) or flag in _FLAGS


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _here(name: str, value: Any) -> Any:
    """Return a value by the name that it has here."""
    known = VALUES.get(_flag(name), {})
    return known.get(value, value) if isinstance(value, str) else value


def _words(name: str, value: Any) -> list[str]:
    """Write an option as the words of a command line; none where it says nothing."""
    flag = _flag(name)
    if value is None:
        return []
    if value is False:
        return [f"--no-{flag[2:]}"] if name in _ON else []
    if value is True and flag in _FLAGS and not _FLAGS[flag].takes:
        return [flag]
    return [f"{flag}={_text(entry)}" for entry in (value if flag == ADAPTERS else [value])]


def _text(value: Any) -> str:
    """Write a value as a word; YAML reads dates as such."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
