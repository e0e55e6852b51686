"""What a matrix takes, from its specification alone. Free of torch.

Padding of prepared weights and what kernels need for themselves are not in it.
"""

from __future__ import annotations

import math

from hotshoe.slots.specs import LinearSpec

TYPE_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
FORMAT_BITS = {"int8": 8, "fp8": 8, "int4": 4, "fp4": 4}
#: Of a scale of a group of 4-bit floats, and of others.
FLOAT_SCALE_BITS, SCALE_BITS = 8, 32


def linear_bytes(spec: LinearSpec) -> int:
    """Return the bytes of a matrix with its scales and bias."""
    elements = spec.in_features * spec.out_features
    if spec.weight is None:
        bits = elements * TYPE_BITS[spec.dtype]
    else:
        name = spec.weight.format.partition("_")[0]
        per_scale = {
            "group": spec.weight.group_size or elements,
            "block": math.prod(spec.weight.block_shape or (elements,)),
            "tensor": elements,
        }.get(spec.weight.granularity, spec.in_features)
        scale_bits = FLOAT_SCALE_BITS if name == "fp4" else SCALE_BITS
        bits = elements * FORMAT_BITS.get(name, 8) + elements // per_scale * scale_bits
    bias = spec.out_features * TYPE_BITS[spec.dtype] if spec.bias else 0
    return (bits + bias) // 8
