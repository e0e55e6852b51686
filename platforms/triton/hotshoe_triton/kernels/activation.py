"""Gated activations, plain and with the output quantized by row."""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import (
    activate,
    largest_bits,
    quantize_row,
    rounded,
    row_scale,
)
from hotshoe_triton.kernels.quantize import store_groups


@triton.jit
def gated(x_ptr, at, there, SIZE: tl.constexpr, ACTIVATION: tl.constexpr):
    """Return act(gate) * up at some columns of a row, rounded to the model's type, as float32."""
    gate = tl.load(x_ptr + at, mask=there, other=0.0)
    up = tl.load(x_ptr + SIZE + at, mask=there, other=0.0).to(tl.float32)
    return rounded(activate(gate.to(tl.float32), ACTIVATION) * up, gate.dtype)


@triton.jit
def gated_activation(
    out_ptr, scale_ptr, x_ptr, x_stride,
    SIZE: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (rows, columns / BLOCK). GROUP columns share a scale, LIMIT is the 8-bit format's, and
    they lie as `store_groups` says; 0 writes the model's type."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    column = first + tl.arange(0, BLOCK)
    there = column < SIZE
    wait(CHAINED)
    y = gated(x_ptr + row * x_stride, column, there, SIZE, ACTIVATION)
    if GROUP > 0:
        store_groups(out_ptr, scale_ptr, y, row, first, tl.num_programs(0), SIZE, LIMIT, GROUP)
    else:
        tl.store(out_ptr + row * SIZE + column, y.to(x_ptr.dtype.element_ty), mask=there)


@triton.jit
def gated_activation_quant(
    out_ptr, scale_ptr, x_ptr, x_stride,
    SIZE: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (rows,). A row wider than BLOCK is computed twice: for its scale, then for its
    values."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    column = tl.arange(0, BLOCK)
    wait(CHAINED)
    y = gated(x_ptr, column, column < SIZE, SIZE, ACTIVATION)
    largest = largest_bits(y)
    for first in range(BLOCK, SIZE, BLOCK):
        more = gated(x_ptr, first + column, first + column < SIZE, SIZE, ACTIVATION)
        largest = tl.maximum(largest, largest_bits(more))
    scale = row_scale(largest, LIMIT)
    tl.store(scale_ptr + row, scale)
    q = quantize_row(y, scale, LIMIT, out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * SIZE + column, q, mask=column < SIZE)
    for first in range(BLOCK, SIZE, BLOCK):
        more = gated(x_ptr, first + column, first + column < SIZE, SIZE, ACTIVATION)
        q = quantize_row(more, scale, LIMIT, out_ptr.dtype.element_ty)
        tl.store(out_ptr + row * SIZE + first + column, q, mask=first + column < SIZE)
