"""Experts' matrices of slot `moe` that are packed: 4-bit and 8-bit numbers, scales by group.

Whoever stored them, they come as `LinearOp.load` takes them, and are packed for the kernels.
x stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import SCALE_BITS, LinearSpec, QuantSpec, linear_bytes
from hotshoe.slots.reference import linear as reference
from hotshoe_triton.groups import STRIP, byte_scales, float_codes, scaled_by_bytes

#: Bits of a number, and what its scale makes up for in the kernels.
FORMATS = {"fp4_e2m1": (4, 2.0**15), "int4": (4, 1.0), "int8": (8, 1.0), "fp8_e4m3": (8, 2.0**8)}
#: Whose tensors are looked at.
LOADED = frozenset({"weight", "weight_scale", "weight_global_scale", "weight_zero_point", "bias"})
#: What numbers times their scale of 8 bits are multiplied by; see `kernels.experts`.
BYTE_FACTOR = 2.0**14
#: Columns of a tile that has one scale a row, the widest first.
SPANS = {4: (32, 16), 8: (64, 32, 16)}


def refusals(side: str, spec: LinearSpec) -> dict[str, bool]:
    """Return what a quantized matrix must not be, and whether it is."""
    quant = spec.weight
    if quant is None:
        return {f"{side} quantizes x alone": spec.activation is not None}
    known = quant.format in FORMATS and not quant.packing
    return {
        f"{side} has weights {quant}, not {', '.join(FORMATS)} with a scale by tensor, channel, "
        "block, or group of 16 columns or more": not known or not _span(quant),
        f"{side} quantizes x; experts are multiplied with x in their model's type": spec.activation
        is not None,
        f"{side} has columns in an order of their own": quant.permuted,
        f"{side} has zero points of plain weights": quant.online and not quant.symmetric,
    }


def _group(quant: QuantSpec) -> int:
    """Return how many columns share a scale; 0 for all."""
    block = quant.block_shape or (0, 0)
    return {"group": quant.group_size or 0, "block": block[1]}.get(quant.granularity, 0)


def _span(quant: QuantSpec) -> int:
    """Return the columns of a tile; 0 where none has one scale."""
    group = _group(quant)
    if scaled_by_bytes(quant):
        return STRIP
    return next((span for span in SPANS[FORMATS[quant.format][0]] if group % span == 0), 0)


def weight_bytes(spec: LinearSpec, facts: DeviceFacts) -> int:
    """Return what an expert's matrix takes as it is kept here."""
    if spec.weight is None:
        return linear_bytes(spec)
    by_row = replace(spec.weight, granularity="group", group_size=_group(spec.weight) or None)
    scale_bits = 16 if spec.weight.format == "fp4_e2m1" else SCALE_BITS
    scale_bits = 8 if scaled_by_bytes(spec.weight) else scale_bits
    return linear_bytes(replace(spec, weight=by_row), None, scale_bits)


class PackedMatrices:
    """One matrix of every expert, packed; see `kernels.experts`.

    Args:
        spec: Of one expert, `refusals` of which are all false.
        experts: How many.
        facts: The device.
    """

    def __init__(self, spec: LinearSpec, experts: int, facts: DeviceFacts) -> None:
        assert spec.weight is not None
        self._spec, self._quant, self._device = spec, spec.weight, facts.device
        bits, self._factor = FORMATS[spec.weight.format]
        self._places, self._span = 8 // bits, _span(spec.weight)
        self._half = 1 << (bits - 1)
        chunk = self._places * self._span
        self._chunks = -(-spec.in_features // chunk)
        self._group = _group(spec.weight) or self._chunks * chunk
        groups = -(-spec.in_features // self._group)
        rows = spec.out_features
        scale = torch.bfloat16 if spec.weight.format == "fp4_e2m1" else torch.float32
        self._bytes = scaled_by_bytes(spec.weight)
        if self._bytes:
            scale = torch.uint8
        self._rooms = {
            "packed": ((experts, self._chunks, rows, self._span), torch.uint8),
            "weight_scale": ((experts, groups, rows), scale),
        }
        if self._bytes:
            self._rooms["weight_global_scale"] = (experts, rows), torch.float32
        if not spec.weight.symmetric:
            self._rooms["weight_zero_point"] = (experts, groups, rows), torch.float32
        if spec.bias:
            self._rooms["bias"] = (experts, rows), getattr(torch, spec.dtype)
        self._held: dict[str, Tensor] = {}

    def load(self, expert: int, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        """Pack one expert's parts into their place."""
        if not self._held:
            self._held = {
                name: torch.empty(shape, dtype=dtype, device=self._device)
                for name, (shape, dtype) in self._rooms.items()
            }
        row = 0
        for i, part in enumerate(tensors["weight"]):
            one = {name: tensors[name][i].to(self._device) for name in tensors.keys() & LOADED}
            rows = slice(row, row := row + len(part))
            for name, tensor in self._kept(one).items():
                self._held[name][expert].movedim(-2 if name == "packed" else -1, 0)[rows] = tensor

    def _kept(self, part: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what is kept of some rows, rows first."""
        quant, values = self._quant, part["weight"]
        bias = {"bias": part["bias"]} if self._spec.bias else {}
        if self._bytes:
            floats = float_codes(values), part["weight_scale"], part["weight_global_scale"]
            codes, scale, factor = byte_scales(*floats)
            wholes = {"weight_scale": scale, "weight_global_scale": factor * BYTE_FACTOR}
            return {"packed": self._packed(codes)} | wholes | bias
        if "weight_scale" in part:
            scale = part["weight_scale"]
        else:
            values, scale = reference.quantize_weight(values, quant)
        by: Tensor | float = self._factor
        if values.is_floating_point():  # NaN would be another number in the kernels
            by = torch.where(values.float().isnan().any(), torch.nan, self._factor)
        made = {"weight_scale": reference.by_row(scale, len(values), quant).float() * by}
        shift = torch.full((), self._half, dtype=torch.int16, device=self._device)
        if not quant.symmetric:
            # Writers differ in whether values begin at 0; only their distance from zero counts.
            shift = torch.where(values.amin() < 0, shift, 0)
            zero = reference.by_row(part["weight_zero_point"], len(values), quant)
            made["weight_zero_point"] = zero.float() + shift
        made["packed"] = self._packed(_codes(values, quant.format, shift))
        return made | bias

    def _packed(self, codes: Tensor) -> Tensor:
        """Return bytes [rows, chunks, span] of the bits of numbers [rows, in_features]."""
        missing = self._chunks * self._places * self._span - codes.shape[1]
        whole = torch.nn.functional.pad(codes, (0, missing))
        places = whole.view(len(codes), self._chunks, self._places, self._span)
        found = places[:, :, 0].clone()
        for place in range(1, self._places):
            found |= places[:, :, place] << 4 * place
        return found

    def operands(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return x, bytes, scales, zero points and bias as kernels take them, or some tensor."""
        packed, scale = self._held["packed"], self._held["weight_scale"]
        other = "weight_global_scale" if self._bytes else "weight_zero_point"
        return x, packed, scale, self._held.get(other, scale), self._held.get("bias", scale)

    def constants(self) -> dict[str, Any]:
        """Return the kernel's constants of the form."""
        return {
            "CODE": self._quant.format,
            "PLACES": self._places,
            "SPAN": self._span,
            "GROUP": self._group,
            "ZEROS": not self._quant.symmetric,
            "BYTES": self._bytes,
            "HALF": float(self._half),
        }

    def state(self) -> dict[str, Tensor]:
        return dict(self._held)


def _codes(values: Tensor, format: str, shift: Tensor) -> Tensor:
    """Return the bits of each number, uint8."""
    if format == "fp8_e4m3":
        return values.contiguous().view(torch.uint8)
    if format == "fp4_e2m1":
        return float_codes(values)
    return (values.to(torch.int16) + shift).to(torch.uint8)
