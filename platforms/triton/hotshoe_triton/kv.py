"""Caches of keys and values as kernels see them: numbers, scales, and where both lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionSpec, RotaryAndCacheSpec, RowForm
from hotshoe_triton.device import KNOWN

#: 8-bit types, with the largest magnitude of each.
LIMITS = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
#: `kv_scales` as kernels know them.
SCALES = {"none": 0, "tensor": 1, "token": 2}


def refusals(spec: AttentionSpec | RotaryAndCacheSpec, facts: DeviceFacts) -> dict[str, bool]:
    """Return reasons to refuse a cache of keys and values, each with whether it holds."""
    kind = spec.kv_dtype
    return type_refusals(kind, spec.dtype, facts) | {
        f"v_head_dim {spec.v_head_dim} differs from head_dim {spec.head_dim}": spec.value_dim
        != spec.head_dim,
        f"kv_dtype {kind} needs kv_scales": kind == "int8" and spec.kv_scales == "none",
    }


def type_refusals(kind: str, dtype: str, facts: DeviceFacts) -> dict[str, bool]:
    """Return reasons to refuse a cache's type, each with whether it holds."""
    arch = KNOWN.get(facts.arch)
    # Compilers of older NVIDIA GPUs do not convert e4m3.
    unknown = kind == "float8_e4m3fn" and arch is not None and arch.backend == "cuda"
    return {
        f"kv_dtype {kind} differs from dtype {dtype}": kind != dtype and kind not in LIMITS,
        f"kv_dtype {kind} is not converted on {facts.arch}; use int8": bool(
            unknown and arch is not None and not arch.fp8
        ),
        f"kv_dtype int8 takes more registers than {facts.arch} has; use fp8": kind == "int8"
        and arch is not None
        and arch.family == "rdna",
    }


def constants(spec: AttentionSpec | RotaryAndCacheSpec) -> dict[str, int]:
    """Return what reader and writer are compiled for."""
    return {"SCALES": SCALES[spec.kv_scales]}


@dataclass(frozen=True, slots=True)
class Planes:
    """One layer's cache, taken apart.

    Attributes:
        tensors: Keys and values [num_blocks, ...] in their type, then the scales of both, float32:
            [2] of the layer, or behind the numbers of every block; keys and values again if there
            are none.
        stride: Elements from block to block of the first two.
    """

    tensors: tuple[Tensor, Tensor, Tensor, Tensor]
    stride: int


def planes(cache: Tensor, spec: AttentionSpec | RotaryAndCacheSpec, given: Tensor | None) -> Planes:
    """Take a cache apart.

    Args:
        cache: [2, num_blocks, block_numel], or bytes of an 8-bit type.
        given: With kv_scales "tensor", the layer's scales.
    """
    numel = spec.block_size * spec.num_kv_heads * spec.head_dim
    numbers = cache[..., :numel]
    if spec.kv_dtype in LIMITS:
        numbers = numbers.view(getattr(torch, spec.kv_dtype))
    k, v = numbers
    scales: tuple[Tensor, Tensor] = (k, v)
    if spec.kv_scales == "tensor":
        assert given is not None, "the layer sets kv_scales before the first call"
        scales = (given[:1], given[1:])
    elif spec.kv_scales == "token":
        last = numel + 4 * spec.block_size * spec.num_kv_heads
        behind = cache[..., numel:last].view(torch.float32)
        scales = (behind[0], behind[1])
    return Planes((k, v, *scales), cache.stride(1))


def row_refusals(form: RowForm, facts: DeviceFacts) -> dict[str, bool]:
    """Return reasons to refuse a cache of rows, each with whether it holds."""
    return type_refusals(form.kv_dtype, form.dtype, facts) | {form.refusal: bool(form.refusal)}


def row_constants(form: RowForm) -> dict[str, int]:
    """Return what readers of rows are compiled for; see `kernels/latent.py`."""
    size = form.exact_size if form.quantized else 1
    return {
        "WIDTH": form.width,
        "KEY_WIDTH": form.width // size,
        "KEY_AT": form.exact_at // size if form.quantized else form.numbers,
        "SCALED": form.quantized,
    }


def row_limit(form: RowForm) -> float:
    """Return what a writer of rows is compiled for: the largest number; 0 for no scale."""
    return LIMITS.get(form.kv_dtype, 0.0)


def row_views(cache: Tensor, form: RowForm) -> tuple[Tensor, Tensor, Tensor]:
    """Return a cache of rows [num_blocks, block_size, width] as numbers, as keys, as scales."""
    if not form.quantized:
        return cache, cache, cache
    kinds = form.kv_dtype, form.dtype, "float32"
    numbers, keys, scales = (cache.view(getattr(torch, kind)) for kind in kinds)
    return numbers, keys, scales
