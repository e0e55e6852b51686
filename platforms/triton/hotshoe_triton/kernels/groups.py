"""Products with packed integers of four or eight bits, and their way back to plain numbers.

A word of 32 bits holds integers of one row that lie SPAN columns apart: the lowest bits are column
c of a chunk, the next ones column c + SPAN, and so on. So one load gives whole tiles of neighboring
columns, and no tile is put together from two. Integers become float32 without a conversion: bits
that are put into the mantissa of a power of two add themselves to it.

Shape suffixes: N output features, K columns of a span, M rows of x.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.linear import last_to_arrive, store_rows, sum_of_planes


@triton.jit
def unpacked(
    word_NK, zero_N, power_N, place: tl.constexpr, BITS: tl.constexpr, FRACTION: tl.constexpr
):
    """Return integer `place` of each word less its zero point, as float32.

    Args:
        power_N: Bits of 2^23. They are no constant, so that one instruction masks and adds them,
            and were loaded, as operands' layouts are brought forward to loads alone.
        FRACTION: Zero points are no integers, and would lose digits beside the power of two.
    """
    # Bits up to 20 fit into the mantissa where they are; those above are brought down first.
    DOWN: tl.constexpr = 0 if (place + 1) * BITS <= 20 else (12 if BITS == 4 else 16)
    AT: tl.constexpr = place * BITS - DOWN
    POWER: tl.constexpr = 8388608.0 / (1 << AT)
    ONE: tl.constexpr = 1.0 / (1 << AT)
    bits_NK = (word_NK >> DOWN) & (((1 << BITS) - 1) << AT) | power_N[:, None]
    value_NK = bits_NK.to(tl.float32, bitcast=True)
    if FRACTION:
        return value_NK * ONE - POWER - zero_N[:, None]
    return value_NK * ONE - (POWER + zero_N)[:, None]


@triton.jit
def columns(x_ptrs_KM, k_K, K: tl.constexpr, WHOLE: tl.constexpr):
    """Load columns of x; those behind the last are zero. WHOLE: There are none."""
    if WHOLE:
        x_KM = tl.load(x_ptrs_KM)
    else:
        x_KM = tl.load(x_ptrs_KM, mask=(k_K < K)[:, None], other=0.0)
    return x_KM


@triton.jit
def grouped(
    y_ptr, x_ptr, word_ptr, scale_ptr, zero_ptr, bias_ptr, power_ptr, partial_ptr,
    counter_ptr, num_rows, N, x_stride,
    K: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr,
    ZEROS: tl.constexpr, FRACTION: tl.constexpr, BIAS: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply rows of x by packed integers. Grid: (N / BLOCK_N, SPLIT_K, rows / BLOCK_M).

    Sums of a group are scaled in float32. A chunk is whole groups, or a group is whole chunks.

    Args:
        word_ptr: [chunks, N, SPAN] int32.
        scale_ptr, zero_ptr: [groups, N].
        partial_ptr: [rows / BLOCK_M, SPLIT_K, N padded, BLOCK_M] float32, scratch.
        counter_ptr: [rows / BLOCK_M, N / BLOCK_N] int32, zero before and after.
    """
    PLACES: tl.constexpr = 32 // BITS
    CHUNK: tl.constexpr = PLACES * SPAN
    CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    STEPS: tl.constexpr = (CHUNKS + SPLIT_K - 1) // SPLIT_K
    tile, part = tl.program_id(0), tl.program_id(1)
    first, first_m = part * STEPS, tl.program_id(2) * BLOCK_M
    n_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row_N, k_K = tl.minimum(n_N, N - 1), tl.arange(0, SPAN)
    m_M = tl.minimum(first_m + tl.arange(0, BLOCK_M), num_rows - 1)
    word_ptrs_NK = word_ptr + (first.to(tl.int64) * N + row_N)[:, None] * SPAN + k_K[None, :]
    x_ptrs_KM = x_ptr + m_M.to(tl.int64)[None, :] * x_stride + k_K[:, None]
    sum_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    zero_N = tl.full([BLOCK_N], HALF, tl.float32)
    power_N = tl.load(power_ptr + n_N * 0)
    wait(CHAINED)
    for step in range(tl.minimum(STEPS, CHUNKS - first)):
        word_NK = tl.load(word_ptrs_NK, eviction_policy="evict_first")
        word_ptrs_NK += N * SPAN
        inner_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for place in tl.static_range(PLACES):
            column = (first + step) * CHUNK + place * SPAN
            if place * SPAN % GROUP == 0:
                at = tl.minimum(column, K - 1) // GROUP * N
                scale_N = tl.load(scale_ptr + at + row_N).to(tl.float32)
                if ZEROS:
                    zero_N = tl.load(zero_ptr + at + row_N).to(tl.float32)
            x_KM = columns(x_ptrs_KM + column, column + k_K, K, K % CHUNK == 0)
            w_NK = unpacked(word_NK, zero_N, power_N, place, BITS, FRACTION).to(x_KM.dtype)
            inner_NM = tl.dot(w_NK, x_KM, inner_NM, input_precision="ieee")
            if (place + 1) * SPAN % GROUP == 0 or place == PLACES - 1:
                sum_NM += inner_NM * scale_N[:, None]
                inner_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    if SPLIT_K > 1:
        tiles = tl.num_programs(0)
        cell_NM = n_N[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        plane = tiles.to(tl.int64) * (BLOCK_N * BLOCK_M)
        partial_ptr += tl.program_id(2) * SPLIT_K * plane
        tl.store(partial_ptr + part * plane + cell_NM, sum_NM)
        if not last_to_arrive(counter_ptr + tl.program_id(2) * tiles + tile, SPLIT_K):
            return
        sum_NM = sum_of_planes(partial_ptr + cell_NM, plane, SPLIT_K)
    store_rows(y_ptr + first_m.to(tl.int64) * N, sum_NM, bias_ptr, bias_ptr, bias_ptr,
               tile * BLOCK_N, num_rows - first_m, N, BIAS, False, BLOCK_N, BLOCK_M)  # fmt: skip


@triton.jit
def plain(
    out_ptr, word_ptr, scale_ptr, zero_ptr, power_ptr, N,
    K: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr,
    ZEROS: tl.constexpr, FRACTION: tl.constexpr, SPAN: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write the weight [N, K] in the type of out. Grid: (N / BLOCK_N, chunks)."""
    PLACES: tl.constexpr = 32 // BITS
    n_N = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k_K = tl.arange(0, SPAN)
    there_N = n_N < N
    chunk = tl.program_id(1)
    word_ptrs_NK = word_ptr + (chunk.to(tl.int64) * N + n_N)[:, None] * SPAN + k_K[None, :]
    word_NK = tl.load(word_ptrs_NK, mask=there_N[:, None], other=0)
    zero_N = tl.full([BLOCK_N], HALF, tl.float32)
    power_N = tl.load(power_ptr + n_N * 0)
    for place in tl.static_range(PLACES):
        column = (chunk * PLACES + place) * SPAN
        if place * SPAN % GROUP == 0:
            at = tl.minimum(column, K - 1) // GROUP * N
            scale_N = tl.load(scale_ptr + at + n_N, mask=there_N, other=0.0).to(tl.float32)
            if ZEROS:
                zero_N = tl.load(zero_ptr + at + n_N, mask=there_N, other=0).to(tl.float32)
        w_NK = unpacked(word_NK, zero_N, power_N, place, BITS, FRACTION) * scale_N[:, None]
        out_ptrs_NK = out_ptr + n_N.to(tl.int64)[:, None] * K + (column + k_K)[None, :]
        there_NK = there_N[:, None] & (column + k_K < K)[None, :]
        tl.store(out_ptrs_NK, w_NK.to(out_ptr.dtype.element_ty), mask=there_NK)
