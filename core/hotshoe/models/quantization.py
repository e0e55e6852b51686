"""What a checkpoint says of its own quantization, wherever its writer has put it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.models.composites import KEY, text_names
from hotshoe.models.config import ModelConfig, read_json
from hotshoe.models.files import MIB

#: Keys of config.json; the second is that of older writers of compressed-tensors.
KEYS = ("quantization_config", "compression_config")
#: Keys that some writers put beside that object, not into it.
BESIDE = ("expert_dtype",)
#: The file beside config.json that ModelOpt writes.
MODELOPT_FILE, MODELOPT = "hf_quant_config.json", "modelopt"
#: Where MLX describes its files, without a method; it says the same in `quantization_config`.
MLX_KEY, MLX = "quantization", "mlx"
INDEX = "model.safetensors.index.json"
#: How MLX signs a file, and names of tensors that it lays out otherwise than others.
SIGNED = re.compile(rb'"__metadata__"\s*:\s*\{[^{}]*"format"\s*:\s*"mlx"')
LAID_OUT = re.compile(rb"\.switch_mlp\.|\.experts\.gate_proj\.|\.embed_q\.|conv(1d)?\.weight")
MAX_HEADER_BYTES = 100 * MIB
#: What both it and config.json may say.
SAID_TWICE = ("quant_algo", "kv_cache_quant_algo", "group_size")


def stored_quantization(model: ModelConfig) -> Mapping[str, Any] | None:
    """Return a quantized checkpoint's description, with `quant_method`; None of a plain one.

    Raises:
        CheckpointError: There are two that differ, or one that names no method.
    """
    text = model.get(KEY)
    places = [model.values, text if isinstance(text, Mapping) else {}]
    found = [place[key] for place in places for key in KEYS if place.get(key) is not None]
    named = {"model_type": model.get("model_type")}
    if (own := _of_mlx(model, places, found)) is not None:
        return {**own, **named, "quant_method": MLX}
    file = model.path / MODELOPT_FILE
    inner = read_json(file).get("quantization") if file.is_file() else None
    if not found and file.is_file():
        found = [{"quant_method": MODELOPT, **inner} if isinstance(inner, Mapping) else inner]
    if not found:
        return {**named, "quant_method": MLX} if _laid_out_by_mlx(model) else None
    config = found[0]
    if any(other != config for other in found):
        raise CheckpointError(
            f"{model.path / 'config.json'} describes its quantization twice, each time otherwise; "
            "keep the one that is true"
        )
    if isinstance(config, Mapping) and isinstance(config.get("quantization"), Mapping):
        config = _flat(model.path, config, config["quantization"])
    if not isinstance(config, Mapping) or not isinstance(config.get("quant_method"), str):
        raise CheckpointError(
            f"{model.path / 'config.json'}: quantization_config must be an object with a "
            "quant_method, such as awq or compressed-tensors, or MLX's bits and group_size; fetch "
            "the file again"
        )
    if isinstance(inner, Mapping):
        _compare(model.path, config, inner)
    beside = {key: place[key] for place in places for key in BESIDE if place.get(key) is not None}
    config = {**beside, **config}
    return text_names(config) if isinstance(text, Mapping) else config


def _of_mlx(
    model: ModelConfig, places: Sequence[Mapping[str, Any]], found: Sequence[Any]
) -> Mapping[str, Any] | None:
    """Return MLX's description; None where there is none.

    MLX reads its own key alone, so that another, of the files that were converted, means nothing.

    Raises:
        CheckpointError: There are two of MLX that differ.
    """
    own: list[Mapping[str, Any]] = [
        place[MLX_KEY] for place in places if _is_mlx(place.get(MLX_KEY))
    ]
    own += [config for config in found if _is_mlx(config)]
    if not own:
        return None
    if any(other != own[0] for other in own):
        raise CheckpointError(
            f"{model.path / 'config.json'} describes its quantization twice, each time otherwise: "
            f"in {MLX_KEY} and in quantization_config; keep the one that is true"
        )
    return own[0]


def _is_mlx(config: object) -> bool:
    named = isinstance(config, Mapping) and ("quant_method" in config or MLX_KEY in config)
    return isinstance(config, Mapping) and not named and {"bits", "group_size"} <= config.keys()


def only_laid_out(config: Mapping[str, Any]) -> bool:
    """Tell whether a description is of plain numbers in the layout of MLX."""
    return config["quant_method"] == MLX and not {"bits", "mode"} & config.keys()


def _laid_out_by_mlx(model: ModelConfig) -> bool:
    """Tell whether the files are plain numbers whose names and layouts are MLX's alone."""
    files = [] if model.file is not None else sorted(model.path.glob("*.safetensors"))
    headers = []
    for path in files[:1]:
        with suppress(OSError), path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            headers.append(file.read(size) if size <= MAX_HEADER_BYTES else b"")
    if not any(map(SIGNED.search, headers)):
        return False
    with suppress(OSError):
        headers.append((model.path / INDEX).read_bytes())
    return any(map(LAID_OUT.search, headers))


def _flat(path: Path, config: Mapping[str, Any], nested: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description that ModelOpt has put into an object of its own, as in its file.

    Raises:
        CheckpointError: A key is there twice, each time otherwise.
    """
    for key in nested.keys() & config.keys():
        if nested[key] != config[key]:
            raise CheckpointError(
                f"{path / 'config.json'}: quantization_config gives {key} {config[key]!r:.40}, and "
                f"quantization within it {nested[key]!r:.40}; correct or remove the one that is "
                "wrong"
            )
    return {"quant_method": MODELOPT, **nested, **config}


def _compare(path: Path, config: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Check that ModelOpt's file does not contradict config.json; names are of any case.

    Raises:
        CheckpointError: It does.
    """
    method, algorithm = config["quant_method"], other.get("quant_algo")
    if not method.lower().startswith(MODELOPT) and algorithm is not None:
        raise CheckpointError(
            f"{path / 'config.json'} gives quant_method {method!r:.40}, and "
            f"{path / MODELOPT_FILE} the quant_algo of another, {algorithm!r:.40}; "
            "correct or remove the one that is wrong"
        )
    for key in SAID_TWICE:
        if key not in config or key not in other:
            continue
        here, there = config[key], other[key]
        if str(here).lower() != str(there).lower():
            raise CheckpointError(
                f"{path / 'config.json'} gives {key} {here!r:.40} in quantization_config, and "
                f"{path / MODELOPT_FILE} {there!r:.40}; correct or remove the one that is wrong"
            )
