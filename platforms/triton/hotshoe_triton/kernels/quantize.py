"""Quantization of activations: each row to 8 bits with its own scale or a given one, or each group
of a row's columns.

Shape suffixes: G groups, K columns of one.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import (
    largest_bits,
    narrowed,
    quantize,
    quantize_row,
    row_scale,
)


@triton.jit
def quantize_groups(x_GK, scale_G, LIMIT: tl.constexpr, dtype: tl.constexpr):
    """Return groups divided by their own scales, in an 8-bit type; see `quantize_row`."""
    usual_G = (scale_G > 1e-30) & (scale_G < 1e30)
    scale_GK = tl.broadcast_to(scale_G[:, None], x_GK.shape)
    if tl.min(usual_G.to(tl.int32), 0) == 1:
        inverse_GK = tl.broadcast_to(tl.div_rn(1.0, scale_G)[:, None], x_GK.shape)
        y_GK = x_GK * inverse_GK
        y_GK = tl.fma(tl.fma(-y_GK, scale_GK, x_GK), inverse_GK, y_GK)
    else:
        y_GK = tl.div_rn(x_GK, scale_GK)
    return narrowed(y_GK, LIMIT, dtype)


@triton.jit
def store_groups(
    out_ptr, scale_ptr, x, row, first, num_rows,
    SIZE: tl.constexpr, LIMIT: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Quantize columns of a row from `first` on, float32 and 0 behind SIZE, each group by itself.

    Args:
        out_ptr: [num_rows, SIZE].
        scale_ptr: [SIZE / GROUP, num_rows].
    """
    GROUPS: tl.constexpr = x.shape[0] // GROUP
    x_GK = tl.reshape(x, [GROUPS, GROUP])
    # NaN lies behind infinity in the order of bits, and makes its scale NaN; see `largest_bits`.
    largest_G = tl.max(x_GK.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    scale_G = row_scale(largest_G, LIMIT)
    y_GK = quantize_groups(x_GK, scale_G, LIMIT, out_ptr.dtype.element_ty)
    group_G = first // GROUP + tl.arange(0, GROUPS)
    there_G = group_G < SIZE // GROUP
    at_GK = group_G[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    tl.store(out_ptr + row * SIZE + at_GK, y_GK, mask=there_G[:, None])
    tl.store(scale_ptr + group_G.to(tl.int64) * num_rows + row, scale_G, mask=there_G)


@triton.jit
def quantize_rows(
    out_ptr, scale_ptr, x_ptr, given_ptr, x_stride,
    SIZE: tl.constexpr, LIMIT: tl.constexpr, GIVEN: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (rows,). BLOCK covers a row. GIVEN: All rows have the scale at given_ptr."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < SIZE
    wait(CHAINED)
    x = tl.load(x_ptr + row * x_stride + column, mask=there, other=0.0).to(tl.float32)
    largest = largest_bits(x)
    if GIVEN:  # but for a row that holds NaN, as no integer is
        scale = tl.where(largest > 0x7F800000, float("nan"), tl.load(given_ptr))
        q = quantize(x, scale, LIMIT, out_ptr.dtype.element_ty)
    else:
        scale = row_scale(largest, LIMIT)
        q = quantize_row(x, scale, LIMIT, out_ptr.dtype.element_ty)
    tl.store(scale_ptr + row, scale)
    tl.store(out_ptr + row * SIZE + column, q, mask=there)
