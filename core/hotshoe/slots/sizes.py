"""What a matrix takes, from its specification alone. Free of torch.

Padding of prepared weights and what kernels need for themselves are not in it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hotshoe.platform import DeviceFacts
from hotshoe.slots.quant_spec import QuantSpec
from hotshoe.slots.specs import LinearSpec

TYPE_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
FORMAT_BITS = {"int8": 8, "fp8": 8, "int4": 4, "fp4": 4}
#: Of a scale of a group of 4-bit floats, and of other scales and zero points.
FLOAT_SCALE_BITS, SCALE_BITS = 8, 32


def linear_bytes(
    spec: LinearSpec,
    bits: int | None = None,
    scale_bits: int | None = None,
    zero_bits: int = SCALE_BITS,
) -> int:
    """Return the bytes of a matrix with its scales, zero points and bias.

    Args:
        spec: The matrix.
        bits: Of a quantized number; None for as many as its format has.
        scale_bits: Of a scale; None for as many as the format's scales need.
        zero_bits: Of a zero point.
    """
    elements = spec.in_features * spec.out_features
    if spec.weight is None:
        whole = elements * TYPE_BITS[spec.dtype]
    else:
        name = spec.weight.format.partition("_")[0]
        per_scale = bits_of_scale(name) if scale_bits is None else scale_bits
        per_scale += 0 if spec.weight.symmetric else zero_bits
        whole = elements * (FORMAT_BITS.get(name, 8) if bits is None else bits)
        whole += _scales(spec, spec.weight) * per_scale
    bias = spec.out_features * TYPE_BITS[spec.dtype] if spec.bias else 0
    return (whole + bias) // 8


def bits_of_scale(format: str) -> int:
    """Return the bits that a scale of a format needs, such as "fp4"."""
    return FLOAT_SCALE_BITS if format == "fp4" else SCALE_BITS


def plain_bytes(spec: LinearSpec, facts: DeviceFacts) -> int:
    """Return the bytes of a matrix that is held as plain numbers, whatever the checkpoint has."""
    return linear_bytes(replace(spec, weight=None))


def reference_bytes(spec: LinearSpec, facts: DeviceFacts) -> int:
    """Return the bytes of a matrix as core's references hold it: a byte or more for each number,
    and in float32 the scales and zero points of every row.
    """
    quant = spec.weight
    if quant is None:
        return linear_bytes(spec)
    width = {"group": quant.group_size, "block": (quant.block_shape or (1, 1))[1]}
    columns = -(-spec.in_features // (width.get(quant.granularity) or spec.in_features))
    scales = spec.out_features * columns * SCALE_BITS * (1 if quant.symmetric else 2) // 8
    order = 8 * spec.in_features if quant.permuted else 0
    bias = spec.out_features * TYPE_BITS[spec.dtype] // 8 if spec.bias else 0
    return spec.in_features * spec.out_features + scales + order + bias


def _scales(spec: LinearSpec, quant: QuantSpec) -> int:
    """Return how many numbers have a scale of their own."""
    if quant.granularity == "block" and quant.block_shape:
        sides = zip((spec.out_features, spec.in_features), quant.block_shape, strict=True)
        return math.prod(-(-side // block) for side, block in sides)
    width = {"group": quant.group_size, "tensor": spec.in_features * spec.out_features}
    per_scale = width.get(quant.granularity) or spec.in_features
    return spec.in_features * spec.out_features // per_scale
