"""Norms of a row, float32 inside: RMS, optionally after a residual addition, optionally quantized;
and layer norm."""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import largest_bits, quantize_row, rounded, row_scale
from hotshoe_triton.kernels.quantize import store_groups


@triton.jit
def rms_norm(
    out_ptr, scale_ptr, x_ptr, residual_ptr, weight_ptr, x_stride, residual_stride,
    SIZE: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr, RESIDUAL_SCALE: tl.constexpr,
    ADD: tl.constexpr, LIMIT: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (rows,). With ADD the residual becomes residual + RESIDUAL_SCALE * x first. LIMIT is
    the largest value of the output's 8-bit format, and 0 writes the model's type. GROUP columns
    share a scale, and lie as `store_groups` says; 0 for a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < SIZE
    weight = tl.load(weight_ptr + column, mask=there, other=0.0).to(tl.float32) + OFFSET
    wait(CHAINED)
    loaded = tl.load(x_ptr + row * x_stride + column, mask=there, other=0.0)
    x = loaded.to(tl.float32)
    if ADD:
        residual_ptrs = residual_ptr + row * residual_stride + column
        total = tl.load(residual_ptrs, mask=there, other=0.0).to(tl.float32) + RESIDUAL_SCALE * x
        kept = total.to(loaded.dtype)
        tl.store(residual_ptrs, kept, mask=there)
        x = kept.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / SIZE + EPS)
    y = x * inverse * weight
    if LIMIT > 0:
        y = tl.where(there, rounded(y, loaded.dtype), 0.0)
    if GROUP > 0:
        store_groups(out_ptr, scale_ptr, y, row, 0, tl.num_programs(0), SIZE, LIMIT, GROUP)
    else:
        if LIMIT > 0:
            scale = row_scale(largest_bits(y), LIMIT)
            tl.store(scale_ptr + row, scale)
            y = quantize_row(y, scale, LIMIT, out_ptr.dtype.element_ty)
        tl.store(out_ptr + row * SIZE + column, y.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def layer_norm(
    out_ptr, x_ptr, weight_ptr, bias_ptr, x_stride,
    SIZE: tl.constexpr, EPS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (rows,). The mean comes first, so that the variance is a sum of small squares."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < SIZE
    weight = tl.load(weight_ptr + column, mask=there, other=0.0).to(tl.float32)
    if BIAS:
        bias = tl.load(bias_ptr + column, mask=there, other=0.0).to(tl.float32)
    wait(CHAINED)
    x = tl.load(x_ptr + row * x_stride + column, mask=there, other=0.0).to(tl.float32)
    centered = tl.where(there, x - tl.sum(x, 0) / SIZE, 0.0)
    y = centered * tl.rsqrt(tl.sum(centered * centered, 0) / SIZE + EPS) * weight
    if BIAS:
        y += bias
    tl.store(out_ptr + row * SIZE + column, y.to(out_ptr.dtype.element_ty), mask=there)
