"""Reads a low-rank adapter from a directory in the form of PEFT.

`adapter_config.json` says rank and scale, `adapter_model.safetensors` holds both factors of every
matrix and, with DoRA, its magnitude; of modules that were trained as a whole, their matrices. What
is not served is refused by name, as is a file with tensors that nobody would use. A base's own
matrix, which PEFT saves beside factors of an embedding, is not read.

Source: PEFT's checkpoint format; rank-stabilized scale, arXiv:2312.03732; DoRA, arXiv:2402.09353.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers.adapters import Factors
from hotshoe.loader.checkpoint import is_finite
from hotshoe.loader.safetensors import SafetensorsFile
from hotshoe.models.files import parse_json, read_text
from hotshoe.models.source import ADAPTER_FILES

CONFIG, WEIGHTS = ADAPTER_FILES
MAX_CONFIG_BYTES = 2**20
MAX_ALPHA = 1e9
#: What tensors are, in the order of `Factors`.
KINDS = ("A", "B", "magnitude_vector")
_NAME = re.compile(
    r"^base_model\.model\.(.+?)\.(?:lora_(?:embedding_)?(A|B|magnitude_vector)(?:\.weight)?"
    r"|(base_layer\.weight|weight))$"
)
_PLAIN_KEY = re.compile(r"\^?[\w.]+")
#: Entries that change what is computed, and the values that are served.
_SERVED: dict[str, tuple[object, ...]] = {
    "use_dora": (None, False, True),
    "bias": (None, "none"),
    "lora_bias": (None, False),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),  # from which token on an adapter counts
    "use_qalora": (None, False),
    "fan_in_fan_out": (None, False, True),  # of the base's matrix; factors lie as others
}

#: Beginnings of names of initializations that change the base's matrices. Factors are beside the
#: changed ones, unless PEFT has converted them, which sets `init_lora_weights` to true.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def read_adapter(path: Path) -> dict[str, Factors]:
    """Return the factors of an adapter, by the names of the matrices that it changes.

    Raises:
        CheckpointError: It cannot be read, or holds what is not served.
    """
    config = _config(path)
    file = SafetensorsFile(path / WEIGHTS)
    halves: dict[str, dict[str, str]] = {}
    for tensor in file.names():
        found = _NAME.match(tensor)
        if found is None:
            raise CheckpointError(
                f"{path / WEIGHTS} holds {tensor}, which is neither a factor of a matrix nor a "
                "whole one"
            )
        halves.setdefault(found[1], {})[found[2] or found[3]] = tensor
    _check_saved(config.get("modules_to_save"), halves)
    _check_layers(config, halves)
    factors = {
        matrix: _factors(path / WEIGHTS, file, matrix, names, config)
        for matrix, names in halves.items()
    }
    if not factors:
        raise CheckpointError(f"{path / WEIGHTS} holds no adapter")
    return factors


def _factors(
    path: Path,
    file: SafetensorsFile,
    matrix: str,
    names: Mapping[str, str],
    config: Mapping[str, Any],
) -> Factors:
    """Read one matrix's adapter.

    Args:
        path, file: Hold it.
        matrix: Its name.
        names: Of the tensors, by what stands behind `lora_`.
        config: Of the adapter.
    """
    if names.keys() == {"weight"}:
        whole = file.tensor(names["weight"])
        _check_numbers(matrix, (whole,), (2,))
        return Factors(whole.new_empty(0, 0), whole.new_empty(0, 0), whole=whole)
    if "weight" in names:
        raise CheckpointError(f"{path} has both factors and a whole matrix of {matrix}")
    dora = bool(config.get("use_dora"))
    if not names.keys() >= {"A", "B"}:
        raise CheckpointError(f"{path} has one factor of {matrix}, but not both")
    if ("magnitude_vector" in names) != dora:
        raise CheckpointError(
            f"{CONFIG} has use_dora {str(dora).lower()}, but {path} has "
            f"{'no' if dora else 'a'} magnitude of {matrix}"
        )
    tensors = [file.tensor(names[kind]) for kind in KINDS if kind in names]
    _check_numbers(matrix, tensors, (2, 2, 1))
    a, b, *magnitude = tensors
    rank, experts = len(a), 1
    if _is_of_experts(config, matrix):
        rank = _meant(config, "rank_pattern", matrix, config.get("r"))
        if not isinstance(rank, int) or not 0 < rank <= len(a) or len(a) % rank:
            raise CheckpointError(
                f"{CONFIG}: r of {matrix} is {rank!r:.40}, but the factor a of its experts has "
                f"{len(a)} rows"
            )
        experts = len(a) // rank
    scale = _scale(config, matrix, rank)
    return Factors(a, b, next(iter(magnitude), None), scale, experts=experts)


def _is_of_experts(config: Mapping[str, Any], matrix: str) -> bool:
    """Tell whether factors are of a parameter, which may be a tensor of all experts."""
    parameters = config.get("target_parameters") or []
    if not isinstance(parameters, list) or not all(isinstance(name, str) for name in parameters):
        raise CheckpointError(f"{CONFIG}: target_parameters {parameters!r:.80} is no list of names")
    module = f".{matrix}".replace(".base_layer", "")
    return any(module.endswith(f".{name.rpartition('.')[0]}") for name in parameters if "." in name)


def _check_numbers(matrix: str, tensors: Sequence[Tensor], axes: Sequence[int]) -> None:
    """Refuse what are no finite floats in so many axes each."""
    for tensor, num_axes in zip(tensors, axes, strict=False):
        if tensor.dim() != num_axes or not tensor.is_floating_point():
            raise CheckpointError(
                f"the adapter's factors of {matrix} are no matrices of floats, or its magnitude "
                "no vector of them"
            )
        if not is_finite(tensor):
            raise CheckpointError(f"the adapter's factors of {matrix} hold NaN or infinity")


def _check_saved(saved: object, found: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse modules that the configuration says were saved, and the file has not."""
    names = [] if saved is None else saved
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{CONFIG}: modules_to_save {saved!r:.80} is no list of names")
    wholes = [f".{matrix}" for matrix, kinds in found.items() if "weight" in kinds]
    for name in names:
        if not any(whole.endswith(f".{name}") for whole in wholes):
            raise CheckpointError(
                f"{CONFIG}: modules_to_save has {name!r:.80}, but {WEIGHTS} holds no such matrix"
            )


def _check_layers(config: Mapping[str, Any], found: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse factors of layers that the configuration leaves out: PEFT would not read them.

    `layers_to_transform` has numbers of layers. A module's is the first number in its name, or what
    stands behind a name of `layers_pattern`; PEFT took the last number up to some version, so
    either may be meant. Whole matrices and parameters belong to no layer.

    Raises:
        CheckpointError: There are such, an entry is of another type, or `layers_pattern` stands
            alone, which PEFT refuses.
    """
    asked, patterns = config.get("layers_to_transform"), config.get("layers_pattern") or []
    layers = [] if asked is None else asked if isinstance(asked, list) else [asked]
    if not all(type(layer) is int for layer in layers):
        raise CheckpointError(f"{CONFIG}: layers_to_transform {asked!r:.80} is no list of numbers")
    names = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(names, list) or not all(
        isinstance(name, str) and _PLAIN_KEY.fullmatch(name) for name in names
    ):
        raise CheckpointError(f"{CONFIG}: layers_pattern {patterns!r:.80} is no list of names")
    if names and asked is None:
        raise CheckpointError(
            f"{CONFIG}: layers_pattern is {patterns!r:.80} without layers_to_transform, which PEFT "
            "refuses; name the layers there, or leave the pattern out"
        )
    if not layers:
        return
    behind = "|".join(map(re.escape, names)) or r"[^.]+"
    for matrix, kinds in found.items():
        if "weight" in kinds or _is_of_experts(config, matrix):
            continue
        numbers = re.findall(rf"\.(?:{behind})\.(\d+)(?=\.)", f".{matrix}")
        if not {int(number) for number in numbers[:1] + numbers[-1:]} & set(layers):
            raise CheckpointError(
                f"{CONFIG}: layers_to_transform is {asked!r:.80}"
                + (f", layers_pattern {patterns!r:.80}" if names else "")
                + f", but {WEIGHTS} has factors of {matrix}"
            )


def _config(path: Path) -> dict[str, Any]:
    """Return what the configuration says, if all of it is served."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is no directory; an adapter is one with {CONFIG}")
    try:
        config = parse_json(read_text(path / CONFIG, MAX_CONFIG_BYTES))
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
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(_CHANGES_BASE):
        raise CheckpointError(
            f"{path / CONFIG}: init_lora_weights {init!r:.80} changed matrices of the base model; "
            "convert the adapter (path_initial_model_for_weight_conversion of PEFT), or write true "
            "there if this model has the changed matrices"
        )
    return config


def _scale(config: Mapping[str, Any], matrix: str, rank: int) -> float:
    """Return what the product of a matrix's factors is multiplied by."""
    if rank == 0:
        raise CheckpointError(
            f"the adapter's factors of {matrix} have rank 0, so they hold nothing"
        )
    alpha = _meant(config, "alpha_pattern", matrix, config.get("lora_alpha", 8))
    number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
    if not number or not -MAX_ALPHA <= alpha <= MAX_ALPHA:  # which NaN is not
        raise CheckpointError(
            f"{CONFIG}: lora_alpha must be a number of usual size, not {alpha!r:.40}"
        )
    said = _meant(config, "rank_pattern", matrix, config.get("r", rank))
    if said != rank:
        raise CheckpointError(
            f"{CONFIG}: r of {matrix} is {said!r:.40}, but the factors' rank is {rank}"
        )
    stable = config.get("use_rslora", False)
    return float(alpha) / (math.sqrt(rank) if stable is True else rank)


def _meant(config: Mapping[str, Any], name: str, matrix: str, default: object) -> Any:
    """Return what a pattern of the configuration says of a matrix.

    Its keys are ends of names, from a dot on, or behind ^ whole names. The first that fits counts.

    Raises:
        CheckpointError: A key is another regular expression: these may take for ever.
    """
    patterns = config.get(name) or {}
    if not isinstance(patterns, dict):
        raise CheckpointError(f"{CONFIG}: {name} {patterns!r:.40} is no JSON object")
    for key, value in patterns.items():
        if _PLAIN_KEY.fullmatch(key) is None:
            raise CheckpointError(f"{CONFIG}: {name} has {key!r:.80}, and only names are served")
        if f".{matrix}".endswith(f".{key}") or f"^{matrix}" == key:
            return value
    return default
