"""Products of experts' packed matrices with blocks of pairs: numbers of four or eight bits.

A byte holds one number, or two of one row that lie SPAN columns apart: so one load gives whole
tiles of neighboring columns. Each tile has one scale a row, by which sums are multiplied.

Shape suffixes: N output features, K columns of a span, M pairs.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.moe import BLOCK_FIELDS, finish, rows_of


@triton.jit
def numbers(byte_NK, zero_NK, place: tl.constexpr, CODE: tl.constexpr, DTYPE: tl.constexpr):
    """Return number `place` of each byte in a type that holds it exactly.

    Floats keep their bits, put into float16; its smaller exponent is made up for by the scale.
    Integers become floats without a conversion: bits in the mantissa of 2^23 add themselves to it.
    """
    bits_NK = byte_NK.to(tl.int32)
    if CODE == "int4" or CODE == "fp4_e2m1":
        bits_NK = (bits_NK >> (4 * place)) & 15
    if CODE == "fp4_e2m1":
        half_NK = ((bits_NK & 8) << 12) | ((bits_NK & 7) << 9)
        value_NK = half_NK.to(tl.int16).to(tl.float16, bitcast=True)
    elif CODE == "fp8_e4m3":
        half_NK = ((bits_NK & 128) << 8) | ((bits_NK & 127) << 7)
        value_NK = half_NK.to(tl.int16).to(tl.float16, bitcast=True)
    else:
        shifted_NK = (bits_NK | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
        value_NK = shifted_NK - zero_NK
    return value_NK.to(DTYPE)


@triton.jit
def scaled(
    sum_NM, byte_NK, x_KM, scale_ptrs_N, zero_ptrs_N, place: tl.constexpr, CODE: tl.constexpr,
    ZEROS: tl.constexpr, BYTES: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Return sums and one tile's product, by its scales. Without ZEROS all zero points are HALF.

    With BYTES scales are 8-bit floats without a sign, by which numbers are multiplied. No digit is
    lost: the number has two, and the scale four.
    """
    if BYTES:
        half_N = (tl.load(scale_ptrs_N).to(tl.int32) << 7).to(tl.int16)
        by_N = half_N.to(tl.float16, bitcast=True) * 256.0
        w_NK = numbers(byte_NK, HALF, place, CODE, tl.float16) * by_N.to(tl.float16)[:, None]
        sum_NM = tl.dot(w_NK.to(x_KM.dtype), x_KM, sum_NM, input_precision="ieee")
    else:
        if ZEROS:
            zero_NK = tl.load(zero_ptrs_N)[:, None]
        else:
            zero_NK = HALF
        w_NK = numbers(byte_NK, zero_NK, place, CODE, x_KM.dtype)
        scale_N = tl.load(scale_ptrs_N).to(tl.float32)
        sum_NM += tl.dot(w_NK, x_KM, input_precision="ieee") * scale_N[:, None]
    return sum_NM


@triton.jit
def columns(x_ptrs_KM, column_K, K: tl.constexpr, CHUNK: tl.constexpr):
    """Return columns of x, which may lie behind the last one where chunks do not divide a row."""
    if K % CHUNK == 0:
        x_KM = tl.load(x_ptrs_KM)
    else:
        x_KM = tl.load(x_ptrs_KM, mask=(column_K < K)[:, None], other=0.0)
    return x_KM


@triton.jit
def by_rows(gate_NM, up_NM, factor_ptrs_N, N: tl.constexpr, GATED: tl.constexpr):
    """Return sums times what their rows are multiplied by."""
    gate_NM *= tl.load(factor_ptrs_N)[:, None]
    if GATED:
        up_NM *= tl.load(factor_ptrs_N + N)[:, None]
    return gate_NM, up_NM


@triton.jit
def grouped_packed(
    y_ptr, x_ptr, w_ptr, scale_ptr, zero_ptr, bias_ptr, order_ptr, blocks_ptr, x_stride,
    N: tl.constexpr, K: tl.constexpr, TOP_K: tl.constexpr, BIAS: tl.constexpr, FIRST: tl.constexpr,
    SORTED: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
    GATE_LIMIT: tl.constexpr,
    ALPHA: tl.constexpr, SHIFT: tl.constexpr, CODE: tl.constexpr, PLACES: tl.constexpr,
    SPAN: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr, BYTES: tl.constexpr,
    HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply blocks of pairs by their expert's matrix; see `kernels.moe.grouped`.

    Args:
        w_ptr: [experts, chunks, N, SPAN] bytes, PLACES * SPAN columns in a chunk; with GATED
            2 * N for N, gates first.
        scale_ptr, zero_ptr: [experts, groups, N], likewise; with BYTES zero_ptr is [experts, N],
            what rows are multiplied by.
    """
    ROWS: tl.constexpr = 2 * N if GATED else N
    CHUNK: tl.constexpr = PLACES * SPAN
    CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    block, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    n_N, k_K = tile * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, SPAN)
    row_N = tl.minimum(n_N, N - 1)
    wait(CHAINED)
    blocks_ptr += block * BLOCK_FIELDS
    expert, begin, end = tl.load(blocks_ptr), tl.load(blocks_ptr + 1), tl.load(blocks_ptr + 2)
    if begin >= end:  # no pairs, also where nobody has cut any blocks and all fields are zeros
        return
    m_M = begin + tl.arange(0, BLOCK_M)
    at_M = tl.minimum(m_M, end - 1)
    pair_M = tl.load(order_ptr + at_M)
    from_M, to_M = rows_of(at_M, pair_M, TOP_K, FIRST, SORTED)
    w_ptrs_NK = w_ptr + expert.to(tl.int64) * (CHUNKS * ROWS * SPAN)
    w_ptrs_NK = w_ptrs_NK + row_N[:, None] * SPAN + k_K[None, :]
    scale_ptrs_N = scale_ptr + expert.to(tl.int64) * (GROUPS * ROWS) + row_N
    zero_ptrs_N = zero_ptr + expert.to(tl.int64) * (ROWS if BYTES else GROUPS * ROWS) + row_N
    x_ptrs_KM = x_ptr + from_M.to(tl.int64)[None, :] * x_stride + k_K[:, None]
    gate_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for chunk in range(CHUNKS):
        gate_NK = tl.load(w_ptrs_NK)
        if GATED:
            up_NK = tl.load(w_ptrs_NK + N * SPAN)
        w_ptrs_NK += ROWS * SPAN
        for place in tl.static_range(PLACES):
            column = chunk * CHUNK + place * SPAN
            x_KM = columns(x_ptrs_KM + column, column + k_K, K, CHUNK)
            at = tl.minimum(column, K - 1) // GROUP * ROWS
            gate_NM = scaled(gate_NM, gate_NK, x_KM, scale_ptrs_N + at, zero_ptrs_N + at, place,
                             CODE, ZEROS, BYTES, HALF)  # fmt: skip
            if GATED:
                up_NM = scaled(up_NM, up_NK, x_KM, scale_ptrs_N + at + N, zero_ptrs_N + at + N,
                               place, CODE, ZEROS, BYTES, HALF)  # fmt: skip
    if BYTES:
        gate_NM, up_NM = by_rows(gate_NM, up_NM, zero_ptrs_N, N, GATED)
    finish(y_ptr, gate_NM, up_NM, bias_ptr + expert * ROWS, n_N, m_M, to_M, end, N, BIAS, FIRST,
           GATED, ACTIVATION, LIMIT, GATE_LIMIT, ALPHA, SHIFT)  # fmt: skip
