"""Checkpoints of compressed-tensors, as llm-compressor writes them.

Source: https://github.com/vllm-project/compressed-tensors, its README and the documentation of
`QuantizationConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.layers import FLOATS, Share, Storage, TensorSpec
from hotshoe.slots import QuantSpec
from hotshoe_quantization.elements import MXFP8, Elements
from hotshoe_quantization.fp4 import COMPRESSED
from hotshoe_quantization.stored import (
    WORDS,
    Axis,
    PackedInputs,
    Pieces,
    Scheme,
    Shape,
    StoredFormat,
    finite,
    has_kv_scales,
    order_spec,
    ordered,
    with_x_left,
    zero_points,
)
from hotshoe_quantization.unpack import signed, unpack
from hotshoe_quantization.values import Values, matches_regex

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", *COMPRESSED)
MX8 = "mxfp8-quantized"
#: Written beside what is needed: the shape, and zero points where all are zero.
UNUSED = (
    r"\.weight_shape$",
    r"\.weight_zero_point$",
    r"\.input_zero_point$",
    r"\.output_zero_point$",
    r"\.input_global_scale$",
)
ZEROS = (".weight_zero_point", ".input_zero_point")
CLASS = "Linear"


@dataclass(frozen=True, slots=True)
class Packed(PackedInputs):
    """Integers of four or eight bits, packed along the inputs, zero points along the outputs.

    Attributes:
        weight: By "channel" or "group".
        order: Columns have groups of their own (`weight_g_idx`).
        left: The form of x in config.json, which stays as it is.
    """

    order: bool
    left: QuantSpec | None = None

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return the integers' form."""
        return with_x_left(layer, PackedInputs.storage(self, layer, shape).weight, self.left)

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return packed weight, scales and zero points, and the columns' groups."""
        per_word = self.per_word
        group = self.weight.group_size
        specs = {
            "weight_packed": Axis(1, per_word).spec(layer, shape, share, WORDS),
            "weight_scale": Axis(1, group).spec(layer, shape, share, FLOATS),
        }
        if not self.weight.symmetric:
            zeros = Axis(per_word, group).spec(layer, shape, share, WORDS)
            specs["weight_zero_point"] = zeros
        if self.order:
            specs["weight_g_idx"] = order_spec(layer, shape, share, group)
        return specs

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Unpack. What is packed has half the range added, so that no integer is negative."""
        made = dict(tensors)
        scales = finite(layer, "weight_scale", tensors["weight_scale"])
        bits, words = self.bits, made.pop("weight_packed")
        width = self.weight.group_size
        inputs = scales[0].shape[1] * width if width else words[0].shape[1] * 32 // bits
        made["weight"] = [signed(unpack(part, bits, inputs), bits) for part in words]
        made["weight_scale"] = scales
        if not self.weight.symmetric:
            made["weight_zero_point"] = [
                signed(unpack(zeros.T, bits, len(scale)), bits).T
                for zeros, scale in zip(tensors["weight_zero_point"], scales, strict=True)
            ]
        if self.order:
            assert width is not None
            made |= ordered(layer, made["weight"], made.pop("weight_g_idx"), width)
        return made


def read(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of compressed-tensors.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    for name in ("transform_config", "sparsity_config"):
        other = values.get(name)
        if other and (not isinstance(other, Mapping) or other.get("format") != "dense"):
            values.refuse(name, "is not read; use a checkpoint that is quantized and no more")
    # Of a frozen checkpoint, too, numbers are stored in the form that is named.
    values.one_of(("compressed", "frozen"), "quantization_status", default="compressed")
    groups = values.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        values.refuse("config_groups", "must hold at least one group")
    ignore = values.names("ignore")
    schemes = [
        _scheme(Values(group, f"quantization_config.config_groups.{name}"), values)
        for name, group in groups.items()
    ]

    def scheme(layer: str) -> Scheme | None:
        if matches_regex(ignore, layer, "quantization_config.ignore"):
            return None
        named = [s for targets, s in schemes if matches_regex(targets, layer, "targets")]
        of_class = [s for targets, s in schemes if CLASS in targets]
        if len({*named}) > 1 or (not named and len({*of_class}) > 1):
            raise CheckpointError(
                f"config.json: quantization_config names {layer} in several config_groups that "
                "differ; keep one"
            )
        return next(iter(named or of_class), None)

    needless = zero_points(scheme, ZEROS)
    of_x = [s.activation for _, s in schemes if isinstance(s, Elements) and s.activation]
    return StoredFormat(
        scheme,
        UNUSED,
        kv_scales=has_kv_scales(values),
        needless=needless,
        x_dynamic=bool(of_x) and all(activation.dynamic for activation in of_x),
    )


def _scheme(group: Values, whole: Values) -> tuple[tuple[str, ...], Scheme | None]:
    """Return what a group of layers is meant by, and how it is stored."""
    targets = group.names("targets")
    if group.get("output_activations") is not None:
        group.refuse("output_activations", "is not read: results are not quantized")
    own = group.get("format") or whole.get("format")
    kind = Values({"format": own}, group.where).one_of((*FORMATS, MX8), "format")
    if group.get("weights") is None:
        return targets, None
    weights = Values(group.get("weights"), f"{group.where}.weights")
    if kind in COMPRESSED:
        weights.one_of((COMPRESSED[kind].size,), "group_size")
        weights.one_of((4,), "num_bits")
        return targets, replace(COMPRESSED[kind], rounds=_rounds(group, COMPRESSED[kind].size))
    if kind == MX8:
        weights.one_of((32,), "group_size")
        weights.one_of((8,), "num_bits")
        weights.one_of(("float",), "type")
        return targets, MXFP8
    weight = _weight(weights)
    activation, left = _of_x(group, weight)
    if kind != "pack-quantized":
        if weight.format == "int4" and kind != "int-quantized":
            weights.refuse("num_bits", f"must be 8 in format {kind}")
        if activation is not None and activation.format != weight.format:
            weights.refuse("type", f"{weight.format} with x in {activation.format} is not computed")
        return targets, Elements(weight, activation or left)
    if activation is not None:
        group.refuse("input_activations", "are not computed with packed weights")
    if weight.granularity not in ("channel", "group") or not weight.format.startswith("int"):
        weights.refuse("strategy", "must be channel or group of integers in format pack-quantized")
    order = weights.one_of((*_ORDERS, None), "actorder", default=None)
    permuted = _ORDERS.get(order, False)
    if permuted and weight.group_size is None:
        weights.refuse("actorder", "needs strategy group")
    kept = QuantSpec(
        weight.format, weight.granularity, weight.group_size,
        symmetric=weight.symmetric, permuted=permuted,
    )  # fmt: skip
    return targets, Packed(kept, int(kept.format.removeprefix("int")), permuted, left)


def _rounds(group: Values, size: int) -> bool:
    """Tell whether x has the form of such weights; in other forms it stays as it is."""
    found = group.get("input_activations")
    inputs = Values({} if found is None else found, f"{group.where}.inputs")
    form = tuple(inputs.get(name) for name in ("num_bits", "type", "group_size"))
    return form == (4, "float", size) and inputs.get("dynamic", default=False) is not False


def _of_x(group: Values, weight: QuantSpec) -> tuple[QuantSpec | None, QuantSpec | None]:
    """Return the form of x that is computed, and the one that config.json has and that is not."""
    found = group.get("input_activations")
    if found is None:
        return None, None
    inputs = Values(found, f"{group.where}.inputs")
    if weight.format == "int4":
        return None, _left_plain(inputs)
    return _activation(inputs), None


def _left_plain(values: Values) -> QuantSpec:
    """Return the form of x of four-bit weights, which stays as it is: nearer to the exact product.

    A scale that the checkpoint has for all x might be part of what the weights were fitted to.
    """
    number = _number(values)
    values.one_of((8,), "num_bits")
    values.one_of((True,), "dynamic", default=False)
    strategy = values.get("strategy", default="token")
    return QuantSpec(number, str(strategy), dynamic=True)


#: Orders of quantization, and whether columns keep groups that are not neighbors.
_ORDERS = {"group": True, "dynamic": True, "weight": False, "static": False, False: False}


def _number(values: Values) -> str:
    """Return the format of numbers."""
    kind = values.one_of(("int", "float"), "type", default="int")
    bits = values.get("num_bits")
    known = {("int", 4): "int4", ("int", 8): "int8", ("float", 8): "fp8_e4m3"}
    if type(bits) is not int or (kind, bits) not in known:
        values.refuse(
            "num_bits", f"{bits!r} of type {kind} is not read, only 4 or 8 of int and 8 of float"
        )
    return known[kind, bits]


def _weight(values: Values) -> QuantSpec:
    number = _number(values)
    symmetric = values.flag("symmetric", default=True)
    if values.flag("dynamic", default=False):
        values.refuse("dynamic", "must be false: weights are stored with their scales")
    size = values.get("group_size")
    assumed = "tensor" if size is None else "channel" if size == -1 else "group"
    strategies = ("tensor", "channel", "group", "block")
    strategy = values.one_of(strategies, "strategy", default=assumed)
    if strategy == "group" and (size := values.size("group_size")) is None:
        strategy = "channel"
    block = _block(values) if strategy == "block" else None
    group = size if strategy == "group" else None
    if not symmetric and number == "fp8_e4m3":
        values.refuse("symmetric", "must be true of floats")
    return QuantSpec(number, strategy, group, block, symmetric=symmetric)


def _block(values: Values) -> tuple[int, int]:
    shape = values.get("block_structure")
    if isinstance(shape, str):
        shape = [int(n) if n.isdigit() else 0 for n in shape.split("x")]
    if (
        not isinstance(shape, list)
        or len(shape) != 2
        or not all(type(n) is int and n > 0 for n in shape)
    ):
        values.refuse("block_structure", f"must be two sizes, such as [128, 128], not {shape!r}")
    return shape[0], shape[1]


def _activation(values: Values) -> QuantSpec:
    number = _number(values)
    if not values.flag("symmetric", default=True):
        values.refuse("symmetric", "must be true: activations with zero points are not computed")
    dynamic = values.one_of((True, False), "dynamic", default=False)
    strategy = values.one_of(("tensor", "token", "group"), "strategy", default="tensor")
    if dynamic and strategy == "tensor":  # rows are computed apart, so that none sees another's
        strategy = "token"
    if dynamic != (strategy != "tensor"):
        values.refuse("strategy", f"{strategy} with dynamic {str(dynamic).lower()} is not computed")
    size = values.size("group_size") if strategy == "group" else None
    return QuantSpec(number, strategy, size, dynamic=dynamic)
