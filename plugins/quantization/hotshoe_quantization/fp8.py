"""Checkpoints of 8-bit floats, `fp8` as DeepSeek and transformers write it, `mxfp8` as MiniMax
does, and of ModelOpt.

Sources: the model cards' README of DeepSeek-V3 (README_WEIGHTS.md), the documentation of
transformers' `FineGrainedFP8Config`, and that of ModelOpt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.slots import QuantSpec
from hotshoe_quantization.elements import MXFP8, Elements
from hotshoe_quantization.four_bits import Nibbles
from hotshoe_quantization.fp4 import MXFP4, NVFP4
from hotshoe_quantization.stored import EXPERTS, Scheme, StoredFormat, has_kv_scales
from hotshoe_quantization.values import Values, holds, matches_pattern

FORMAT = "fp8_e4m3"
STATIC = QuantSpec(FORMAT, "tensor")
TOKEN = QuantSpec(FORMAT, "token", dynamic=True)
#: Older and newer names of the scales of a whole matrix and of x.
RENAMES = ((r"\.weight_scale_inv$", ".weight_scale"), (r"\.activation_scale$", ".input_scale"))
#: ModelOpt's name for layers that say for themselves what it has done, and its names of that.
MIXED = "mixed_precision"
ALGORITHMS: dict[str, Scheme] = {
    "fp8": Elements(QuantSpec(FORMAT, "tensor"), STATIC),
    "fp8_per_channel_per_token": Elements(QuantSpec(FORMAT, "channel"), TOKEN),
    "nvfp4": NVFP4,
    "w4a16_nvfp4": replace(NVFP4, x_whole="", rounds=False),
    "w4a8_nvfp4_fp8": replace(NVFP4, x_whole="", rounds=False),
    "mxfp4": replace(MXFP4, rounds=True),
    "w4a8_mxfp4_fp8": MXFP4,
    "mxfp8": MXFP8,
    "w8a16": Elements(QuantSpec("int8", "channel")),
    "fp8_pb_wo": Elements(QuantSpec(FORMAT, "block", block_shape=(128, 128))),
}
#: Sizes of groups of those that have some, and those with a scale of x that nothing here needs.
SIZES = {n: 32 if "mxfp" in n else 16 for n in ALGORITHMS if "mxfp" in n or "nvfp" in n}
X_STAYS = (*SIZES, MIXED)


def read(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of method fp8.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    values.one_of(("e4m3", "float8_e4m3fn"), "fmt", "fp8_format", default="e4m3")
    # GPTQModel's FP8 is divided by its scales, a row's.
    values.one_of(("multiply",), "weight_scale_semantics", default="multiply")
    static = (
        values.one_of(("dynamic", "static"), "activation_scheme", default="dynamic") == "static"
    )
    kept = values.names("modules_to_not_convert", "ignored_layers")
    block = values.get("weight_block_size")
    if block is None:
        scheme = Elements(QuantSpec(FORMAT, "tensor"), STATIC if static else TOKEN)
    else:
        if (
            not isinstance(block, list)
            or len(block) != 2
            or any(type(n) is not int or n < 1 for n in block)
        ):
            values.refuse(
                "weight_block_size", f"must be two sizes, such as [128, 128], not {block!r}"
            )
        if static:
            values.refuse("activation_scheme", "must be dynamic with weight_block_size")
        groups = QuantSpec(FORMAT, "group", block[1], dynamic=True)
        weight = QuantSpec(FORMAT, "block", block_shape=(block[0], block[1]))
        scheme = Elements(weight, groups, "weight_scale_inv")

    experts = values.one_of(("fp8", "fp4"), "expert_dtype", default="fp8")
    of_experts: Scheme = scheme if experts == "fp8" else replace(MXFP4, scale=scheme.scale)

    def choose(layer: str) -> Scheme | None:
        if layer.endswith("lm_head") or holds(kept, layer):
            return None
        return of_experts if EXPERTS in layer else scheme

    return StoredFormat(choose, renames=RENAMES if block is None else (), x_dynamic=not static)


def read_fbgemm(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of method fbgemm_fp8.

    The largest number of x that its writers computed with (`activation_scale_ub`) cuts none here.

    Raises:
        CheckpointError: It is malformed.
    """
    kept = ("lm_head", *Values(config).names("modules_to_not_convert"))
    scheme = Elements(QuantSpec(FORMAT, "channel"), TOKEN)
    return StoredFormat(
        lambda layer: None if holds(kept, layer) else scheme, (r"\.input_scale_ub$",)
    )


def read_w4afp8(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of method w4afp8: experts of four bits, else 8-bit floats.

    Raises:
        CheckpointError: It is malformed.
    """
    values = Values(config)
    kept = ("lm_head", *values.names("modules_to_not_convert", "ignored_layers"))
    groups = QuantSpec(FORMAT, "group", 128, dynamic=True)
    weight = QuantSpec(FORMAT, "block", block_shape=(128, 128))
    scheme = Elements(weight, groups, "weight_scale_inv")
    size = 128 if values.get("group_size") is None else values.size("group_size")
    if size is None:
        values.refuse("group_size", "must be that of a group, not -1")
    experts = Nibbles(size, "weight_scale_inv")

    def choose(layer: str) -> Scheme | None:
        if holds(kept, layer):
            return None
        return experts if EXPERTS in layer else scheme

    return StoredFormat(choose, (r"\.input_scale$",))


def read_mxfp8(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of method mxfp8: 8-bit floats with an exponent for 32.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    values.one_of(("dynamic",), "activation_scheme", default="dynamic")
    row = [1, SIZES["mxfp8"]]
    if (block := values.get("weight_block_size", default=row)) != row:
        values.refuse("weight_block_size", f"must be {row}, not {block!r}")
    kept = ("lm_head", *values.names("modules_to_not_convert", "ignored_layers"))
    return StoredFormat(lambda layer: None if holds(kept, layer) else MXFP8, renames=RENAMES)


def read_modelopt(config: Mapping[str, Any]) -> StoredFormat:
    """Read what ModelOpt says, in config.json or hf_quant_config.json.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    algorithm = values.one_of((*ALGORITHMS, MIXED), "quant_algo")
    _check_size(values, algorithm)
    for group in values.objects("config_groups").values() if algorithm != MIXED else ():
        if (weights := group.get("weights")) is not None:
            _check_size(Values(weights, f"{group.where}.weights"), algorithm)
    choose = _by_layer(values) if algorithm == MIXED else partial(_always, ALGORITHMS[algorithm])
    kept = values.names("exclude_modules", "ignore")
    cache = values.get("kv_cache_quant_algo", default="")
    if not isinstance(cache, str):
        values.refuse("kv_cache_quant_algo", f"must be a name, not {cache!r}")
    return StoredFormat(
        lambda layer: None if matches_pattern(kept, layer) else choose(layer),
        (r"\.input_scale$",) if algorithm in X_STAYS else (),
        kv_scales=cache.lower() == "fp8" or has_kv_scales(values),
    )


def _always(scheme: Scheme, layer: str) -> Scheme:
    return scheme


def _by_layer(values: Values) -> Callable[[str], Scheme | None]:
    """Return what chooses by the name of a layer, or of what it is part of; others are plain."""
    where = "quantized_layers"
    listed = values.get(where)
    if not isinstance(listed, Mapping) or not listed:
        values.refuse(where, "must hold at least one layer where quant_algo is MIXED_PRECISION")
    layers = {n: Values(v, f"{values.where}.{where}.{n}") for n, v in listed.items()}
    schemes = {n: _listed(layer) for n, layer in layers.items()}

    def choose(layer: str) -> Scheme | None:
        found = {schemes[n] for n in schemes if matches_pattern((n,), layer)}
        if len(found) > 1:
            raise CheckpointError(
                f"config.json: {values.where}.{where} means {layer} by several names that differ; "
                "keep one"
            )
        return next(iter(found), None)

    return choose


def _listed(layer: Values) -> Scheme:
    algorithm = layer.one_of(ALGORITHMS, "quant_algo")
    _check_size(layer, algorithm)
    return ALGORITHMS[algorithm]


def _check_size(values: Values, algorithm: str) -> None:
    """Refuse a group's size that is not the algorithm's."""
    if (size := SIZES.get(algorithm)) is not None:
        values.one_of((size,), "group_size", default=size)
