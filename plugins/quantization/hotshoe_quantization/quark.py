"""Checkpoints of Quark, as it exports them for transformers: `real_quantized` weights.

8-bit floats and integers have an element each; OCP's MXFP4 has two in a byte, and an exponent for
32 of them. Sources: the documentation of Quark, the config.json of published checkpoints, and OCP
Microscaling Formats 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.slots import QuantSpec
from hotshoe_quantization.elements import Elements
from hotshoe_quantization.fp4 import MXFP4, Fp4
from hotshoe_quantization.stored import Scheme, StoredFormat, zero_points
from hotshoe_quantization.values import Values, matches_pattern, matches_regex

NUMBERS = {"fp8_e4m3": "fp8_e4m3", "int8": "int8", "fp4": "fp4"}
SCALES = {"per_tensor": "tensor", "per_channel": "channel"}
#: Of x that MXFP4 multiplies; but in the same form it stays as it is.
MX_INPUTS = ("fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3", "mx")
#: What x has a scale for where scales are computed; rows are always computed apart.
DYNAMIC = ("per_tensor", "per_channel", "per_token")
#: Algorithms that change what a layer computes; the others end in its weights.
ROTATIONS = ("rotation", "quarot", "spinquant")
#: Scales of keys and values.
RENAMES = ((r"\.(k|v)_proj\.output_scale$", r".\1_scale"),)
UNUSED = tuple(rf"\.{of}_zero_point$" for of in ("weight", "input", "output", "bias"))
ZEROS = (".weight_zero_point", ".input_zero_point")
WHERE = "quantization_config"


def read(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of Quark.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    export = Values(values.get("export", default={}), f"{WHERE}.export")
    export.one_of(("real_quantized",), "weight_format", default="real_quantized")
    export.one_of(("reorder", "order"), "pack_method", default="reorder")  # of 4-bit integers
    if values.get("layer_type_quant_config"):
        values.refuse("layer_type_quant_config", "is not read; name layers in layer_quant_config")
    _check_algorithms(values)
    exclude = values.names("exclude")
    layers = values.objects("layer_quant_config")
    caches = _caches(layers, export.names("kv_cache_group"))
    caches |= values.objects("kv_cache_quant_config")
    whole = Values(values.get("global_quant_config"), f"{WHERE}.global_quant_config")
    default = _scheme(whole, False)
    schemes = {name: _scheme(layer, name in caches) for name, layer in layers.items()}

    def choose(layer: str) -> Scheme | None:
        if matches_pattern(exclude, layer) or matches_regex(exclude, layer, f"{WHERE}.exclude"):
            return None
        found = {name: scheme for name, scheme in schemes.items() if fnmatchcase(layer, name)}
        if len({*found.values()}) > 1:
            raise CheckpointError(
                f"config.json: {WHERE}.layer_quant_config means {layer} by {' and '.join(found)}, "
                "which differ; keep one"
            )
        return next(iter(found.values()), default)

    kv_scales = bool(caches) and all(_has_scale(cache) for cache in caches.values())
    unused = (*UNUSED, r"\.input_scale$") if _stays(default, schemes) else UNUSED
    needless = zero_points(choose, ZEROS)
    return StoredFormat(choose, unused, RENAMES if kv_scales else (), kv_scales, needless)


def _check_algorithms(values: Values) -> None:
    """Refuse algorithms whose layers compute something more."""
    found = values.get("algo_config", default=())
    for algorithm in found if isinstance(found, list | tuple) else (found,):
        name = Values(algorithm, f"{WHERE}.algo_config").get("name", default="")
        if str(name).lower() in ROTATIONS:
            values.refuse("algo_config", f"{name} is not read: x is not rotated")


def _caches(layers: Mapping[str, Values], groups: tuple[str, ...]) -> dict[str, Values]:
    """Return those whose results are keys and values."""
    return {
        name: layer
        for name, layer in layers.items()
        if name in groups or any(fnmatchcase(name, group) for group in groups)
    }


def _has_scale(layer: Values) -> bool:
    """Tell whether there is one scale of all keys, or of all values, of 8-bit floats."""
    results = layer.get("output_tensors")
    if not isinstance(results, Mapping):
        layer.refuse("output_tensors", f"must be an object, as it is of a cache, not {results!r}")
    known = Values(results, f"{layer.where}.output_tensors")
    dynamic = known.flag("is_dynamic", default=False)
    return (known.get("dtype"), known.get("qscheme"), dynamic) == ("fp8_e4m3", "per_tensor", False)


def _stays(default: Scheme | None, schemes: Mapping[str, Scheme | None]) -> bool:
    """Tell whether some layers leave x as it is, whatever scale the checkpoint has for it."""
    return any(isinstance(scheme, Fp4) for scheme in (default, *schemes.values()))


def _scheme(layer: Values, cached: bool) -> Scheme | None:
    """Return how layers are stored; `cached` means that their results are keys and values."""
    if layer.get("output_tensors") is not None and not cached:
        layer.refuse("output_tensors", "are not computed but for the cache (kv_cache_group)")
    if layer.get("bias") is not None:
        layer.refuse("bias", "must be null: quantized biases are not read")
    stored, inputs = layer.get("weight"), layer.get("input_tensors")
    if stored is None:
        if inputs is not None:
            layer.refuse("input_tensors", "are not computed with plain weights")
        return None
    if isinstance(stored, list):
        layer.refuse("weight", "in several steps is not read")
    weight = Values(stored, f"{layer.where}.weight")
    number = NUMBERS[weight.one_of(NUMBERS, "dtype")]
    if weight.flag("is_dynamic", default=False):
        weight.refuse("is_dynamic", "must be false: weights are stored with their scales")
    if not weight.flag("symmetric", default=True):
        weight.refuse("symmetric", "must be true: zero points are not read")
    activation = None
    if inputs is not None:
        if isinstance(inputs, list):
            layer.refuse("input_tensors", "in several steps are not computed")
        activation = Values(inputs, f"{layer.where}.input_tensors")
    if number == "fp4":
        return _mxfp4(weight, activation)
    scales = SCALES[weight.one_of(SCALES, "qscheme")]
    if scales == "channel":
        weight.one_of((0,), "ch_axis", default=0)
    return Elements(
        QuantSpec(number, scales), None if activation is None else _activation(activation, number)
    )


def _mxfp4(weight: Values, activation: Values | None) -> Scheme:
    """Check that 4-bit floats are OCP's."""
    weight.one_of(("per_group",), "qscheme")
    weight.one_of((32,), "group_size")
    weight.one_of(("e8m0",), "scale_format")
    weight.one_of((-1, 1), "ch_axis", default=-1)
    if activation is None:
        return MXFP4
    kind = activation.one_of(MX_INPUTS, "dtype")
    form = tuple(activation.get(name) for name in ("qscheme", "group_size", "scale_format"))
    alike = (kind, *form) == ("fp4", "per_group", 32, "e8m0")
    return replace(MXFP4, rounds=alike and activation.flag("is_dynamic", default=False))


def _activation(values: Values, number: str) -> QuantSpec:
    """Return the form of x."""
    values.one_of((number,), "dtype")
    if not values.flag("symmetric", default=True):
        values.refuse("symmetric", "must be true: activations with zero points are not computed")
    if values.flag("is_dynamic", default=False):
        values.one_of(DYNAMIC, "qscheme")
        return QuantSpec(number, "token", dynamic=True)
    values.one_of(("per_tensor",), "qscheme")
    return QuantSpec(number, "tensor")
