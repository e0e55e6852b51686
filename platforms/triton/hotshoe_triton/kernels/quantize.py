"""Quantization of activations: each row to 8 bits with its own scale, or with a given one."""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import largest_bits, quantize, quantize_row, row_scale


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
