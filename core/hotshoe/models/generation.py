"""Sampling defaults of a checkpoint: its generation_config.json as data.

What a request leaves open, its authors may have decided. Only the keys below count: `do_sample` and
the keys of other searches describe what `transformers` does without a server's request.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hotshoe.errors import CheckpointError, ConfigError, RequestError
from hotshoe.models.config import read_json
from hotshoe.suggest import did_you_mean
from hotshoe.types import SamplingParams

FILE = "generation_config.json"
AUTO, NONE = "auto", "none"
#: Their key -> ours.
_KEYS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
#: The fields of `SamplingParams` that a model may have a default for.
FIELDS = frozenset(_KEYS.values())


def sampling_defaults(
    choice: str, model: Path, overrides: Mapping[str, Any] = MappingProxyType({})
) -> Mapping[str, Any]:
    """Return fields of `SamplingParams` for what requests leave open.

    Args:
        choice: "auto": the model directory's file, if it has one; "none"; or a file, or a
            directory with one.
        model: The model directory.
        overrides: Entries in place of the file's, under its names.

    Raises:
        CheckpointError: The file is missing, malformed, or has a value out of range.
        ConfigError: An entry of `overrides` is out of range, or no default of sampling.
    """
    for key in overrides:
        if key not in _KEYS:
            named = did_you_mean(key, _KEYS)
            raise ConfigError(
                f"override_generation_config: {key!r} is no default of sampling{named} "
                f"(choices: {', '.join(_KEYS)})"
            )
    try:
        given = _fields(overrides)
    except RequestError as error:
        raise ConfigError(f"override_generation_config: {error}") from None
    if choice == NONE or (choice == AUTO and not (model / FILE).exists()):
        return given
    path = model if choice == AUTO else Path(choice).expanduser()
    path = path / FILE if path.is_dir() else path
    values = read_json(path)
    try:
        return _fields(values) | given
    except RequestError as error:
        raise CheckpointError(
            f"{path}: {error}; mend it, or leave it out with --generation-config none"
        ) from None


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `SamplingParams` among the entries of a file, each within its bounds."""
    found = {ours: values[key] for key, ours in _KEYS.items() if values.get(key) is not None}
    SamplingParams(**found)
    return found
