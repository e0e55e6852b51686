"""Checkpoints of torchao as transformers writes them: safetensors files of flattened tensors.

A tensor of a class of its own, such as `Int8Tensor`, lies there as `_weight_qdata`, `_weight_scale`
and `_weight_zero_point`. config.json says how it was made. Nothing is unpickled, so files of older
versions, which need that, are refused. Sources: the documentation of torchao and of transformers'
`TorchAoConfig`, and files that both have written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.layers import FLOATS, Share, Storage, TensorSpec
from hotshoe.slots import QuantSpec
from hotshoe_quantization.elements import Elements
from hotshoe_quantization.fp4 import PAIRS
from hotshoe_quantization.stored import (
    Axis,
    Pieces,
    Scheme,
    Shape,
    StoredFormat,
    check_group,
    finite,
    zero_points,
)
from hotshoe_quantization.unpack import signed, unpack
from hotshoe_quantization.values import OTHERWISE, Values, matches_regex, skips

RENAMES = (
    (r"\._weight_qdata$", ".weight"),
    (r"\._weight_(scale|zero_point)$", r".weight_\1"),
)
ZEROS = "._weight_zero_point"
DEFAULT = "_default"
FLOAT = "float8_e4m3fn"
TOKEN8 = QuantSpec("int8", "token", dynamic=True)
TOKENF = QuantSpec("fp8_e4m3", "token", dynamic=True)
#: How many integers of four bits share a scale.
GROUPS = (32, 64, 128, 256)
SYMMETRIC = ("symmetric", "symmetric_no_clipping_err")


@dataclass(frozen=True, slots=True)
class Plain4:
    """Integers of four bits, two in a byte, `weight`; `weight_scale` and `weight_zero_point`.

    A number is q * scale + zero, q from -8 to 7; scales and zeros are [groups, outputs]. See
    `hotshoe_quantization.stored.Scheme`.

    Attributes:
        size: Of a group.
    """

    size: int

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return integers with zero points, which need not be integers."""
        check_group(layer, shape[1], self.size)
        return Storage(QuantSpec("int4", "group", self.size, symmetric=False))

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return the three tensors."""
        groups = Axis(1, self.size, transposed=True).spec(layer, shape, share, FLOATS)
        packed = Axis(1, 2).spec(layer, shape, share, PAIRS)
        return {"weight": packed, "weight_scale": groups, "weight_zero_point": groups}

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Unpack; a zero becomes its distance from q = 0 in steps."""
        made = {name: tensors[name] for name in tensors if name == "bias"}
        scales = [s.T for s in finite(layer, "weight_scale", tensors["weight_scale"])]
        zeros = [z.T for z in finite(layer, "weight_zero_point", tensors["weight_zero_point"])]
        if any(bool((scale == 0).any()) for scale in scales):
            raise CheckpointError(f"{layer}.weight_scale holds 0; export the checkpoint again")
        codes = [unpack(part, 4, 2 * part.shape[1]) for part in tensors["weight"]]
        return made | {
            "weight": [signed(part ^ 8, 4) for part in codes],
            "weight_scale": scales,
            "weight_zero_point": [-z / s for z, s in zip(zeros, scales, strict=True)],
        }


def read(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of torchao.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    if values.flag("include_input_output_embeddings", default=False):
        values.refuse("include_input_output_embeddings", "must be false: embeddings stay plain")
    kept = ("lm_head",)
    if values.get("modules_to_not_convert") is not None:
        kept = values.names("modules_to_not_convert")
    kinds = values.get("quant_type")
    if not isinstance(kinds, Mapping) or list(kinds) != ["default"]:
        values.refuse(
            "quant_type", f"must be an object with default alone, not {kinds!r}; {OTHERWISE}"
        )
    choose = _choice(kinds["default"], "quantization_config.quant_type.default")

    def scheme(layer: str) -> Scheme | None:
        return None if skips(kept, layer) else choose(layer)

    return StoredFormat(scheme, renames=RENAMES, needless=zero_points(scheme, (ZEROS,)))


def _choice(made: object, where: str) -> Callable[[str], Scheme | None]:
    """Return what says how a layer is stored."""
    values = Values(made, where)
    if values.get("_type") not in ("FqnToConfig", "ModuleFqnToConfig"):
        scheme = _scheme(values)
        return lambda layer: scheme
    data = Values(values.get("_data"), f"{where}._data")
    named = data.get("fqn_to_config", "module_fqn_to_config")
    if not isinstance(named, Mapping):
        data.refuse("fqn_to_config", f"must be an object, not {named!r}")
    schemes = {
        str(name): None if one is None else _scheme(Values(one, f"{where}.{name}"))
        for name, one in named.items()
    }

    def choose(layer: str) -> Scheme | None:
        for name in (layer, f"{layer}.weight"):
            if name in schemes:
                return schemes[name]
        for name, scheme in schemes.items():
            if name.startswith("re:") and matches_regex((f"{name}$",), layer, where):
                return scheme
        return schemes.get(DEFAULT)

    return choose


def _scheme(values: Values) -> Scheme:
    """Return how layers are stored that one configuration has made."""
    kind = values.get("_type")
    if not isinstance(kind, str) or kind not in KINDS:
        values.refuse("_type", f"is read as {' or '.join(KINDS)}, not {kind!r}; {OTHERWISE}")
    if values.get("_version", default=1) != 2:
        values.refuse("_version", "must be 2; quantize the model again with a newer torchao")
    return KINDS[kind](Values(values.get("_data"), f"{values.where}._data"))


def _int8(data: Values) -> Scheme:
    return Elements(_granular(data, "int8", "granularity"))


def _int8_token(data: Values) -> Scheme:
    _enum(data, "act_mapping_type", SYMMETRIC[:1])
    data.one_of((False,), "weight_only_decode", default=False)
    return Elements(_granular(data, "int8", "granularity"), TOKEN8)


def _float8(data: Values) -> Scheme:
    _enum(data, "weight_dtype", (FLOAT,))
    return Elements(_granular(data, "fp8_e4m3", "granularity"))


def _float8_token(data: Values) -> Scheme:
    for name in ("weight_dtype", "activation_dtype"):
        _enum(data, name, (FLOAT,))
    _enum(data, "packing_format", ("plain",))
    for name in ("activation_value_lb", "activation_value_ub"):
        if data.get(name) is not None:
            data.refuse(name, "must be null: scales of x are not bounded")
    return Elements(_granular(data, "fp8_e4m3", "granularity"), TOKENF)


def _intx(data: Values) -> Scheme:
    number = _enum(data, "weight_dtype", ("int4", "int8"))
    _enum(data, "intx_packing_format", ("unpacked_to_int8",))
    mapping = _enum(data, "mapping_type", (*SYMMETRIC, "asymmetric"))
    return Elements(_granular(data, number, "granularity", mapping in SYMMETRIC))


def _intx_token(data: Values) -> Scheme:
    """x stays as it is beside integers of four bits, so it may have zero points in config.json."""
    _enum(data, "weight_dtype", ("int4",))
    _enum(data, "intx_packing_format", ("unpacked_to_int8",))
    mapping = _enum(data, "weight_mapping_type", (*SYMMETRIC, "asymmetric"))
    weight = _granular(data, "int4", "weight_granularity", mapping in SYMMETRIC)
    return Elements(weight, TOKEN8)


def _int4(data: Values) -> Scheme:
    _enum(data, "int4_packing_format", ("plain",))
    return Plain4(data.one_of(GROUPS, "group_size", default=128))


KINDS: dict[str, Callable[[Values], Scheme]] = {
    "Int4WeightOnlyConfig": _int4,
    "Int8WeightOnlyConfig": _int8,
    "Int8DynamicActivationInt8WeightConfig": _int8_token,
    "Float8WeightOnlyConfig": _float8,
    "Float8DynamicActivationFloat8WeightConfig": _float8_token,
    "IntxWeightOnlyConfig": _intx,
    "Int8DynamicActivationIntxWeightConfig": _intx_token,
}


def _enum(data: Values, name: str, choices: tuple[str, ...]) -> str:
    """Return the value of {"_type": ..., "_data": value}, in small letters; the first if none."""
    if data.get(name) is None:
        return choices[0]
    inner = Values(data.get(name), f"{data.where}.{name}")
    return str(inner.one_of(choices, "_data"))


def _granular(data: Values, number: str, name: str, symmetric: bool = True) -> QuantSpec:
    """Return a weight's form by what shares a scale; of two, x's comes first."""
    value = data.get(name, default={"_type": "PerRow"})
    if isinstance(value, list):
        if not value:
            data.refuse(name, "must not be empty")
        value = value[-1]
    shared = Values(value, f"{data.where}.{name}")
    kind = shared.one_of(("perrow", "peraxis", "pertensor", "pergroup"), "_type")
    inner = Values(shared.get("_data", default={}), f"{shared.where}._data")
    inner.one_of((0, -1), "axis", "dim", default=0)
    if kind != "pergroup":
        form = "tensor" if kind == "pertensor" else "channel"
        return QuantSpec(number, form, symmetric=symmetric)
    size = inner.size("group_size")
    return QuantSpec(number, "channel" if size is None else "group", size, symmetric=symmetric)
