"""What the weights behind chosen operations take, from the specifications alone. Free of torch.

Padding of prepared weights and what kernels need for themselves are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hotshoe.slots.specs import LinearSpec

#: How often each specification of each slot is used.
Uses = Mapping[tuple[str, Any], int]

TYPE_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
FORMAT_BITS = {"int8": 8, "fp8": 8, "int4": 4, "mxfp4": 4, "nvfp4": 4}
SCALE_BITS = 32


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
        bits = elements * FORMAT_BITS.get(name, 8) + elements // per_scale * SCALE_BITS
    bias = spec.out_features * TYPE_BITS[spec.dtype] if spec.bias else 0
    return (bits + bias) // 8


def matrices(slot: str, spec: Any) -> tuple[LinearSpec, ...]:
    """Return the matrices that an operation holds."""
    if slot == "gated_mlp":
        return (spec.gate_up, spec.down)
    return (spec,) if slot == "linear" else ()


def matrix_bytes(uses: Uses) -> int:
    """Return the bytes of all prepared matrices, that of tied logits among them."""
    return sum(
        count * linear_bytes(matrix)
        for (slot, spec), count in uses.items()
        for matrix in matrices(slot, spec)
    )


def table_bytes(uses: Uses) -> int:
    """Return the bytes of the tables that embeddings are looked up in."""
    return sum(
        count * spec.num_embeddings * spec.size * TYPE_BITS[spec.dtype] // 8
        for (slot, spec), count in uses.items()
        if slot == "embedding"
    )
