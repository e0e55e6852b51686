"""Checkpoints of HQQ: integers of two, four or eight bits in bytes, with zero points of any number.

A byte holds numbers that lie half a matrix apart, or a quarter, so that no rank could cut it. The
files' tensors are put together before a layer asks. Source: the documentation of HQQ, and what it
writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import FLOATS, Share, Storage, TensorSpec
from hotshoe.loader.sources import Described, Stored, TensorSource
from hotshoe.slots import QuantSpec
from hotshoe_quantization.stored import (
    Axis,
    Pieces,
    Scheme,
    Shape,
    StoredFormat,
    check_group,
    finite,
)
from hotshoe_quantization.unpack import signed, signed_values
from hotshoe_quantization.values import Values, holds

BITS = (2, 4, 8)
#: Tensors of a matrix, by what they become.
PARTS = {"weight": "W_q", "weight_scale": "scale", "weight_zero_point": "zero"}
SHAPE = "shape"
#: What says again what config.json says, and has to agree; and all that says how one was made.
SAID_AGAIN = ("nbits", "axis", "group_size")
NEEDLESS = frozenset(
    "axis channel_wise compute_dtype encoded_state_dict group_size nbits offload_meta optimize "
    "packing quant_scale quant_zero round_zero stores_quant_config unpack_view_dtype "
    "view_as_float".split()
)


@dataclass(frozen=True, slots=True)
class Hqq:
    """`weight`, `weight_scale` and `weight_zero_point`, as `_Decoded` has them. See `Scheme`.

    Attributes:
        bits: Of a number in the files.
        size: Of a group; None for a row.
    """

    bits: int
    size: int | None

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return integers with zero points."""
        check_group(layer, shape[1], self.size)
        granularity = "channel" if self.size is None else "group"
        number = f"int{max(self.bits, 4)}"
        few = signed_values(self.bits)
        return Storage(QuantSpec(number, granularity, self.size, symmetric=False, values=few))

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return the three tensors."""
        groups = Axis(1, self.size).spec(layer, shape, share, FLOATS)
        weight = Axis().spec(layer, shape, share, frozenset({torch.int8}))
        weight = replace(
            weight, drawn=lambda values: signed(values & (2**self.bits - 1), self.bits)
        )
        return {"weight": weight, "weight_scale": groups, "weight_zero_point": groups}

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Check scales and zero points."""
        names = ("weight_scale", "weight_zero_point")
        return {**tensors, **{name: finite(layer, name, tensors[name]) for name in names}}


class HqqFormat(StoredFormat):
    """See `hotshoe.layers.WeightFormat`."""

    def decode(self, source: TensorSource) -> TensorSource:
        """Return a source that has a row for each output, and the rest as it is."""

        def made(layer: str) -> Hqq | None:
            scheme = self.scheme(layer)
            return scheme if isinstance(scheme, Hqq) else None

        return _Decoded(source, made)


class _Decoded:
    """A source whose matrices are integers less the half of their range, a row for each output.

    Args:
        source: The files'.
        made: Says how a layer's matrix was made; None where it is plain.

    Raises:
        CheckpointError: A matrix has parts, but not all; or is plain as config.json says.
    """

    def __init__(self, source: TensorSource, made: Callable[[str], Hqq | None]) -> None:
        self._source = source
        known = dict.fromkeys(source.names())
        layers = [name.removesuffix(".W_q") for name in known if name.endswith(".W_q")]
        self._schemes: dict[str, Hqq] = {}
        #: The files' name of each part, and its layer.
        self._parts: dict[str, tuple[str, str]] = {}
        beside = set()
        self._again = {f"{layer}.{name}" for layer in layers for name in SAID_AGAIN} & known.keys()
        for layer in layers:
            if (scheme := made(layer)) is None:
                raise CheckpointError(
                    f"{layer} is stored as integers, but config.json means plain numbers"
                )
            self._schemes[layer] = scheme
            needed = [f"{layer}.{part}" for part in (*PARTS.values(), SHAPE)]
            if missing := [name for name in needed if name not in known]:
                raise CheckpointError(f"the checkpoint lacks {' and '.join(missing)}")
            beside |= {*needed, *(f"{layer}.{part}" for part in NEEDLESS)}
            self._parts |= {f"{layer}.{p}": (layer, f"{layer}.{n}") for p, n in PARTS.items()}
        self._names = [*(name for name in known if name not in beside), *self._parts]

    def names(self) -> Iterable[str]:
        """Return plain tensors, then parts of matrices."""
        return self._names

    def tensor(self, name: str) -> Tensor:
        """Return a tensor as it is, or a part of a matrix.

        Raises:
            CheckpointError: Parts of a matrix are malformed, or do not belong together.
        """
        layer, stored = self._parts.get(name, ("", name))
        tensor = self._source.tensor(stored)
        if not layer:
            return tensor
        bits, (rows, columns) = self._schemes[layer].bits, self._shape(layer)
        half = 1 << (bits - 1)
        if name.endswith(".weight"):
            self._check(layer)
            if tensor.dtype != torch.uint8 or tensor.numel() * 8 // bits != rows * columns:
                raise CheckpointError(
                    f"{stored} is of type {tensor.dtype} and shape {list(tensor.shape)}, which are "
                    f"not the bytes of {rows} x {columns} numbers of {bits} bits; fetch or export "
                    "the checkpoint again"
                )
            mask, shifts = (1 << bits) - 1, range(8 - bits, -1, -bits)
            values = torch.cat([tensor >> shift & mask for shift in shifts])
            return signed(values.view(rows, columns), bits)
        if tensor.numel() % rows:
            raise CheckpointError(f"{stored} has no equal part for each of {rows} outputs")
        groups = tensor.reshape(rows, -1)
        return groups if name.endswith("scale") else groups.float() - half

    def _check(self, layer: str) -> None:
        """Refuse a matrix that was made otherwise than config.json says, by its own tensors.

        Raises:
            CheckpointError: It was.
        """
        scheme = self._schemes[layer]
        meant = {"nbits": scheme.bits, "axis": 1, "group_size": scheme.size}
        for part, value in meant.items():
            name = f"{layer}.{part}"
            if name not in self._again or value is None:
                continue
            found = self._source.tensor(name).flatten().tolist()
            if found != [value]:
                raise CheckpointError(
                    f"{name} is {found!r:.60}, but {part} of quantization_config is {value}; "
                    "correct config.json, or export the checkpoint again"
                )

    def _shape(self, layer: str) -> tuple[int, int]:
        """Return the outputs and inputs of a matrix."""
        found = self._source.tensor(f"{layer}.{SHAPE}").flatten().tolist()
        if len(found) != 2 or any(type(n) is not int or n < 1 for n in found):
            raise CheckpointError(f"{layer}.{SHAPE} must be two sizes, not {found}")
        return found[0], found[1]

    def taken(self, name: str) -> None:
        """Let go of a tensor."""
        self._source.taken(self._parts.get(name, ("", name))[1])

    def stored(self, name: str) -> Stored:
        """Return the type and size in the file."""
        stored = self._parts.get(name, ("", name))[1]
        if isinstance(self._source, Described):
            return self._source.stored(stored)
        tensor = self._source.tensor(stored)
        return Stored(str(tensor.dtype).removeprefix("torch."), tensor.nbytes)


def read(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of HQQ.

    Raises:
        CheckpointError: It is malformed, or means a form that is not read.
    """
    values = Values(config)
    kept = ("lm_head",) if values.get("skip_modules") is None else values.names("skip_modules")
    made = Values(values.get("quant_config"), "quantization_config.quant_config")
    if made.get("weight_quant_params") is not None:
        scheme = _scheme(made)
        return HqqFormat(lambda layer: None if holds(kept, layer) else scheme)
    schemes = {name: _scheme(one) for name, one in values.objects("quant_config").items()}

    def choose(layer: str) -> Scheme | None:
        found = (one for name, one in schemes.items() if f".{layer}".endswith(f".{name}"))
        return None if holds(kept, layer) else next(found, None)

    return HqqFormat(choose)


def _scheme(values: Values) -> Hqq:
    for name in ("scale_quant_params", "zero_quant_params"):
        if values.get(name) is not None:
            values.refuse(name, "must be null: quantized scales are not read")
    params = Values(values.get("weight_quant_params"), f"{values.where}.weight_quant_params")
    params.one_of((1,), "axis")
    params.one_of((False,), "view_as_float", default=False)
    size = None if params.get("group_size") is None else params.size("group_size")
    return Hqq(params.one_of(BITS, "nbits"), size)
