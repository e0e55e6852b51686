"""Candidate `groups` of slot `linear`: weights of two to eight bits with scales by group.

Checkpoints have such weights, whoever packed them, or they are quantized while they load. Those of
at most sixteen values are held as places in a table of these: in four bits, or of four values in
two. Other integers have as many bits as they need, of four, six and eight.

x stays as it is, or beside integers of four bits is rounded to int8 by token, as some checkpoints
want it. Then sums of integers run over each group; but on processors with tiles, more than 32 rows
of bfloat16 are rounded to it again, and go on as x that stays as it is.

Such a few rows are multiplied by weights as they come out of their bits, with sums in float32: up
to 16; of bfloat16 up to 4 on processors with tiles, and up to 8 by eight bits on those that
multiply pairs of it. For more rows weights become plain numbers of the model's type, some at a
time. Scales have 16 bits where x has: floats of 11 bits, which each row multiplies by a power of
two.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, QuantSpec, Verdict, linear_bytes, renewed
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe_cpu.linear import CODES, INT8_ACTIVATION
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels
from hotshoe_native import MAX_INT8_K

BITS = {"int4": 4, "int8": 8}
#: 4-bit floats are given doubled, as integers.
FLOATS = {"fp4_e2m1": (-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12)}
#: The most values that codes of some bits stand for.
TABLES = {2: 4, 4: 16}
#: Types of x, in which many rows meet plain weights.
TYPES = ("float32", "bfloat16")
#: What is added to symmetric values so that none is negative.
OFFSETS = {4: 8, 6: 32, 8: 128}
#: Values that fill whole words.
STEPS = {2: 16, 4: 8, 6: 16, 8: 4}


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and the form of the weight."""
    weight = spec.weight or QuantSpec("", "")
    what = f"weights {spec.weight}" if spec.weight else "plain weights"
    group = _group(spec)
    bits, rounds = _bits(spec), spec.activation is not None
    refusals = {
        f"{what} are not int4 or int8 with scales by group or row": not bits
        or weight.granularity not in ("group", "channel")
        or bool(weight.packing)
        or weight.dynamic,
        f"x is rounded to int8 by token, beside int4, not to {spec.activation}": rounds
        and (spec.activation != INT8_ACTIVATION or weight.format != "int4"),
        f"{group} inputs of a group are more than the {MAX_INT8_K} whose int8 products fit "
        "32 bits": rounds and group > MAX_INT8_K,
        "4-bit floats are not made here": weight.online and weight.format in FLOATS,
        "columns of weights in another order than x's are not multiplied": weight.permuted,
        f"groups of {group} among {spec.in_features} inputs do not fill words": bool(bits)
        and (not group or spec.in_features % group != 0 or group % STEPS[bits] != 0),
        f"x of type {spec.dtype} is not multiplied, only {' and '.join(TYPES)}": spec.dtype
        not in TYPES,
        f"results of type {spec.out_dtype} are not written": (spec.out_dtype or spec.dtype)
        not in DTYPE_CODES,
    }
    return judge(facts, spec.dtype, refusals)


def weight_bytes(spec: LinearSpec, facts: DeviceFacts) -> int:
    """Return the bytes as they are held: scales and minima have the bits of x."""
    bits = 8 * torch_dtype(spec.dtype).itemsize
    return linear_bytes(spec, _bits(spec) if spec.weight else None, bits, bits)


def _bits(spec: LinearSpec) -> int:
    """Return how many bits a value is held in; 0 where it is none of those that are."""
    weight = spec.weight or QuantSpec("", "")
    held = BITS.get(weight.format, 0)
    if values := _values(spec):
        return min(bits for bits, most in TABLES.items() if len(values) <= most)
    return 6 if held == 8 and 4 < (weight.bits or held) <= 6 else held


def _values(spec: LinearSpec) -> tuple[int, ...]:
    """Return the values of a weight that is held as places in a table; none of one that is not.

    x of eight bits meets integers alone, and those of four bits take no more than a place.
    """
    weight = spec.weight or QuantSpec("", "")
    values = FLOATS.get(weight.format, weight.values or ())
    narrower = weight.format != "int4" or len(values) <= TABLES[2]
    return values if narrower and spec.activation is None and len(values) <= TABLES[4] else ()


@cache
def _table(values: tuple[int, ...], bits: int) -> Tensor:
    """Return int8 [16] of values, the last one again up to 2**bits, all of them as often as fit."""
    filled = [*values, *[values[-1]] * (TABLES[bits] - len(values))]
    return torch.tensor(filled * (TABLES[4] // TABLES[bits]), dtype=torch.int8)


def _group(spec: LinearSpec) -> int:
    """Return how many inputs share a scale; 0 where nothing sensible is said."""
    by_group = spec.weight is not None and spec.weight.granularity == "group"
    return (spec.weight.group_size or 0) if by_group and spec.weight else spec.in_features


class Linear:
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        assert spec.weight is not None
        self._native = kernels(facts)
        native = self._native
        self._kernel = native.linear_groups_int8 if spec.activation else native.linear_groups
        self._bits, self._n, self._group = _bits(spec), spec.out_features, _group(spec)
        self._groups = spec.in_features // self._group
        values = _values(spec)
        self._table = _table(values, self._bits) if values else None
        self._offset = 0 if values else OFFSETS[self._bits]
        table = 0 if self._table is None else self._table.data_ptr()
        self._shape = (self._bits, self._n, spec.in_features, self._group, table)
        self._minima = not spec.weight.symmetric
        self._y_dtype = torch_dtype(spec.out_dtype or spec.dtype)
        self._x_code, self._y_code = CODES[torch_dtype(spec.dtype)], CODES[self._y_dtype]
        self._packed = torch.empty(0, dtype=torch.uint8)
        self._bias: Tensor | None = None
        self._bias_address = 0

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        if not self._packed.numel():
            nbytes = self._native.linear_groups_nbytes(*self._shape, self._minima, self._x_code)
            self._packed = torch.zeros(nbytes, dtype=torch.uint8)
            self._native.advise_huge_pages(self._packed.data_ptr(), nbytes)
        parts = tensors["weight"]
        nothing = [None] * len(parts)
        scales = tensors.get("weight_scale", nothing)
        zeros = tensors.get("weight_zero_point", nothing)
        row = 0
        for part, scale, zero in zip(parts, scales, zeros, strict=True):
            self._pack(row, part, scale, zero)
            row += part.shape[0]
        if "bias" in tensors:
            bias = torch.cat([part.float() for part in tensors["bias"]])
            self._bias = renewed(self._bias, bias)
            self._bias_address = self._bias.data_ptr()

    def _pack(self, row: int, part: Tensor, scale: Tensor | None, zero: Tensor | None) -> None:
        """Pack rows [rows, in_features] from `row` on; integers come with their scales."""
        if scale is None:
            part, scale = _quantized(part, self._bits, self._group)
        shape = (part.shape[0], -1)
        spread = scale.float().reshape(shape if scale.dim() else (1, 1))
        scales = spread.expand(part.shape[0], self._groups).contiguous()
        values, minima = part.to(torch.int16), None
        if self._minima:
            assert zero is not None
            # Writers differ in whether values begin at 0; only their distance from zero counts.
            shift = self._offset if bool((values < 0).any()) else 0
            distance = zero.float().reshape(shape).expand(part.shape[0], self._groups) + shift
            values, minima = values + shift, (-scales * distance).contiguous()
        else:
            values = values + self._offset
        packed = values.to(torch.uint8).contiguous()  # of a table the bytes of int8
        self._native.linear_groups_pack(
            *self._shape,
            self._x_code,
            self._packed.data_ptr(),
            row,
            part.shape[0],
            packed.data_ptr(),
            scales.data_ptr(),
            0 if minima is None else minima.data_ptr(),
        )

    def state(self) -> dict[str, Tensor]:
        if not self._packed.numel():
            return {}
        return {"packed": self._packed} | ({} if self._bias is None else {"bias": self._bias})

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.size(0)
        y = torch.empty(rows, self._n, dtype=self._y_dtype)
        self._kernel(
            *self._shape,
            self._offset,
            self._minima,
            self._packed.data_ptr(),
            rows,
            self._x_code,
            x.data_ptr(),
            x.stride(0),
            self._bias_address,
            self._y_code,
            y.data_ptr(),
            self._n,
        )
        return y

    def nbytes(self) -> int:
        return self._packed.nbytes + (0 if self._bias is None else self._bias.nbytes)


def _quantized(part: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Quantize rows symmetrically to the nearest value; scales are [rows, groups] float32."""
    limit = 2 ** (bits - 1) - 1
    grouped = part.float().reshape(part.shape[0], -1, group)
    scale = grouped.abs().amax(2) / limit
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    values = (grouped / scale[..., None]).round().clamp(-limit, limit)
    return values.to(torch.int8).reshape(part.shape), scale
