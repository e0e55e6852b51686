"""Sampling defaults of a checkpoint: its generation_config.json as data.

What a request leaves open, its authors may have decided. Only the keys below count: `do_sample` and
the keys of other searches describe what `transformers` does without a server's request.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotshoe.errors import CheckpointError, RequestError
from hotshoe.models.config import read_json
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


def sampling_defaults(choice: str, model: Path) -> Mapping[str, Any]:
    """Return fields of `SamplingParams` for what requests leave open.

    Args:
        choice: "auto": the model directory's file, if it has one; "none"; or a file, or a
            directory with one.
        model: The model directory.

    Raises:
        CheckpointError: The file is missing, malformed, or has a value out of range.
    """
    if choice == NONE or (choice == AUTO and not (model / FILE).exists()):
        return {}
    path = model if choice == AUTO else Path(choice).expanduser()
    path = path / FILE if path.is_dir() else path
    values = read_json(path)
    found = {ours: values[key] for key, ours in _KEYS.items() if values.get(key) is not None}
    try:
        SamplingParams(**found)
    except RequestError as error:
        raise CheckpointError(
            f"{path}: {error}; mend it, or leave it out with --generation-config none"
        ) from None
    return found
