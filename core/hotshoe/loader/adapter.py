"""Reads a low-rank adapter from a directory in the form of PEFT.

`adapter_config.json` says rank and scale, `adapter_model.safetensors` holds both factors of every
matrix and, with DoRA, its magnitude. What is not served is refused by name, as is a file with
tensors that nobody would use.

Source: PEFT's checkpoint format; rank-stabilized scale, arXiv:2312.03732; DoRA, arXiv:2402.09353.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.layers.adapters import AdapterTable, Factors
from hotshoe.loader.checkpoint import is_finite
from hotshoe.loader.safetensors import SafetensorsFile
from hotshoe.models.files import read_text

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG_BYTES = 2**20
MAX_ALPHA = 1e9
#: What stands behind `lora_` in names of tensors, in the order of `Factors`.
KINDS = ("A", "B", "magnitude_vector")
_NAME = re.compile(
    r"^base_model\.model\.(.+)\.lora_(A(?=\.)|B(?=\.)|magnitude_vector)(?:\.weight)?$"
)
#: Entries that change what is computed, and the values that are served.
_SERVED: dict[str, tuple[object, ...]] = {
    "use_dora": (None, False, True),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "alpha_pattern": (None, {}),
    "lora_bias": (None, False),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "fan_in_fan_out": (None, False),
}


def read_adapter(table: AdapterTable, name: str, path: Path) -> None:
    """Keep an adapter under a name, in place of one of this name.

    Raises:
        CheckpointError: It cannot be read, holds what is not served, or does not fit the model;
            nothing has changed.
    """
    config = _config(path)
    file = SafetensorsFile(path / WEIGHTS)
    halves: dict[str, dict[str, str]] = {}
    for tensor in file.names():
        found = _NAME.match(tensor)
        if found is None:
            raise CheckpointError(
                f"{path / WEIGHTS} holds {tensor}, which is no factor of a linear layer; adapters "
                "of embeddings and whole modules are not served"
            )
        halves.setdefault(found[1], {})[found[2]] = tensor
    factors = {
        matrix: _factors(path / WEIGHTS, file, matrix, names, bool(config.get("use_dora")))
        for matrix, names in halves.items()
    }
    if not factors:
        raise CheckpointError(f"{path / WEIGHTS} holds no adapter")
    ranks = {len(pair.a) for pair in factors.values()}
    if len(ranks) > 1:  # each would have a scale of its own
        raise CheckpointError(f"the adapter's matrices have different ranks: {sorted(ranks)}")
    [rank] = ranks
    if rank == 0:
        raise CheckpointError("the adapter's matrices have rank 0, so they hold nothing")
    table.load(name, factors, _scale(config, rank))


def _factors(
    path: Path, file: SafetensorsFile, matrix: str, names: Mapping[str, str], dora: bool
) -> Factors:
    """Read one matrix's adapter.

    Args:
        path, file: Hold it.
        matrix: Its name.
        names: Of the tensors, by what stands behind `lora_`.
        dora: It has a magnitude.
    """
    if not names.keys() >= {"A", "B"}:
        raise CheckpointError(f"{path} has one factor of {matrix}, but not both")
    if ("magnitude_vector" in names) != dora:
        raise CheckpointError(
            f"{CONFIG} has use_dora {str(dora).lower()}, but {path} has "
            f"{'no' if dora else 'a'} magnitude of {matrix}"
        )
    found = Factors(*(file.tensor(names[kind]) for kind in KINDS if kind in names))
    for tensor, num_axes in zip(found, (2, 2, 1), strict=True):
        if tensor is None:
            continue
        if tensor.dim() != num_axes or not tensor.is_floating_point():
            raise CheckpointError(
                f"the adapter's factors of {matrix} are no matrices of floats, or its magnitude "
                "no vector of them"
            )
        if not is_finite(tensor):
            raise CheckpointError(f"the adapter's factors of {matrix} hold NaN or infinity")
    return found


def _config(path: Path) -> dict[str, Any]:
    """Return what the configuration says, if all of it is served."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is no directory; an adapter is one with {CONFIG}")
    try:
        config = json.loads(read_text(path / CONFIG, MAX_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / CONFIG} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path / CONFIG} is no JSON object")
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise CheckpointError(f"{path / CONFIG}: peft_type {kind!r} is not served, only LORA")
    for name, served in _SERVED.items():
        if config.get(name) not in served:
            raise CheckpointError(f"{path / CONFIG}: {name} {config[name]!r} is not served")
    return config


def _scale(config: dict[str, Any], rank: int) -> float:
    """Return what the product of both factors is multiplied by."""
    alpha = config.get("lora_alpha", 8)
    number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
    if not number or not -MAX_ALPHA <= alpha <= MAX_ALPHA:  # which NaN is not
        raise CheckpointError(
            f"{CONFIG}: lora_alpha must be a number of usual size, not {alpha!r:.40}"
        )
    if config.get("r", rank) != rank:
        raise CheckpointError(f"{CONFIG}: r is {config['r']!r}, but the factors' rank is {rank}")
    stable = config.get("use_rslora", False)
    return float(alpha) / (math.sqrt(rank) if stable is True else rank)
