"""Caches of keys and values in cases: how they are held, quantized ones too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import PLAIN_LAYOUT, AttentionSpec, RotaryAndCacheSpec
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.kv import LIMITS, kv_of
from hotshoe_conformance.place import Place

#: Quantized caches, as changes of a specification.
QUANTIZED: tuple[dict[str, Any], ...] = (
    {"kv_dtype": "int8", "kv_scales": "token"},
    {"kv_dtype": "float8_e4m3fn", "kv_scales": "token"},
    {"kv_dtype": "float8_e4m3fn", "kv_scales": "tensor"},
    {"kv_dtype": "float8_e5m2"},
)
#: Scales of a layer's keys and values.
GIVEN = (0.03, 0.05)
#: Between neighbors of a type, relative to a value or, of integers, to the head's largest.
STEPS = {"int8": 1 / 127, "float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2}
Spec = AttentionSpec | RotaryAndCacheSpec


def held_as(spec: Spec) -> tuple[int, torch.dtype, float]:
    """Return the elements of a block's keys, their type, and what stands for NaN in it."""
    numel = spec.block_size * spec.num_kv_heads * spec.head_dim
    if spec.kv_dtype not in LIMITS:
        return numel, torch_dtype(spec.kv_dtype), float("nan")
    scales = 4 * spec.block_size * spec.num_kv_heads * (spec.kv_scales == "token")
    return numel + scales, torch.uint8, 0xFF


def give_scales(op: Any, spec: Spec, place: Place) -> Tensor:
    """Do what the layer does with the scales of a checkpoint, and return them on the host."""
    given = torch.tensor(GIVEN)
    if spec.kv_scales == "tensor":
        op.kv_scales = place(given)
    return given


def as_kept(spec: Spec, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values [tokens, kv heads, head_dim] as a cache of this kind has them."""
    if spec.kv_dtype not in LIMITS:
        return k, v
    blocks = -(-len(k) // spec.block_size)
    numel, dtype, _ = held_as(spec)
    cache = torch.zeros((2, blocks, numel), dtype=dtype)
    paged = kv_of(cache, spec, PLAIN_LAYOUT, torch.tensor(GIVEN))
    paged.write(k, v, torch.arange(len(k)))
    return paged.gather(torch.arange(blocks), len(k))
