"""8-bit floats whose scales cover blocks: of 128 columns of x, and of a weight's rows and columns.

Shape suffixes: N output features, K input features of a block, M rows of x, G blocks of a row.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.linear import last_to_arrive, store_rows, sum_of_planes
from hotshoe_triton.kernels.quantize import store_groups


@triton.jit
def quantize_blocks(
    out_ptr, scale_ptr, x_ptr, x_stride, num_rows,
    BLOCKS: tl.constexpr, WIDTH: tl.constexpr, LIMIT: tl.constexpr, AT_ONCE: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Quantize each block of WIDTH columns with its own scale. Grid: (rows, BLOCKS / AT_ONCE).

    Scales lie as [BLOCKS, num_rows].
    """
    row = tl.program_id(0).to(tl.int64)
    SIZE: tl.constexpr = BLOCKS * WIDTH
    first = tl.program_id(1) * (AT_ONCE * WIDTH)
    column = first + tl.arange(0, AT_ONCE * WIDTH)
    wait(CHAINED)
    x = tl.load(x_ptr + row * x_stride + column, mask=column < SIZE, other=0.0).to(tl.float32)
    store_groups(out_ptr, scale_ptr, x, row, first, num_rows, SIZE, LIMIT, WIDTH)


@triton.jit
def scaled_blocks(
    y_ptr, x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, bias_ptr, partial_ptr, counter_ptr,
    num_rows, N,
    BLOCKS: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr, GROUP_M: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply; sums of a block are scaled in float32. Grid: (tiles of y, SPLIT_K).

    Programs that run together share GROUP_M tiles of x's rows.

    Args:
        x_ptr, w_ptr: [num_rows, BLOCKS * WIDTH] and [N, BLOCKS * WIDTH].
        x_scale_ptr: [BLOCKS, num_rows].
        w_scale_ptr: [BLOCKS, N / HEIGHT], rounded up.
        partial_ptr: [tiles, SPLIT_K, BLOCK_N, BLOCK_M] float32, scratch.
        counter_ptr: [tiles] int32, zero before and after.
    """
    STEPS: tl.constexpr = (BLOCKS + SPLIT_K - 1) // SPLIT_K
    K: tl.constexpr = BLOCKS * WIDTH
    tiles_m, tiles_n = tl.cdiv(num_rows, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile, part = tl.program_id(0), tl.program_id(1)
    group, inside = tile // (GROUP_M * tiles_n), tile % (GROUP_M * tiles_n)
    high = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    first_m = (group * GROUP_M + inside % high) * BLOCK_M
    first_n = inside // high * BLOCK_N
    row_M = tl.minimum(first_m + tl.arange(0, BLOCK_M), num_rows - 1)
    row_N = tl.minimum(first_n + tl.arange(0, BLOCK_N), N - 1)
    k_K = part * STEPS * WIDTH + tl.arange(0, WIDTH)
    x_ptrs_KM = x_ptr + row_M.to(tl.int64)[None, :] * K + k_K[:, None]
    w_ptrs_NK = w_ptr + row_N.to(tl.int64)[:, None] * K + k_K[None, :]
    x_scale_ptrs_M = x_scale_ptr + row_M + (part * STEPS).to(tl.int64) * num_rows
    scales = (N + HEIGHT - 1) // HEIGHT
    w_scale_ptrs_N = w_scale_ptr + row_N // HEIGHT + part * STEPS * scales
    sum_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    wait(CHAINED)
    for _ in range(tl.minimum(STEPS, BLOCKS - part * STEPS)):
        w_NK = tl.load(w_ptrs_NK)
        x_KM = tl.load(x_ptrs_KM)
        scale_NM = tl.load(w_scale_ptrs_N)[:, None] * tl.load(x_scale_ptrs_M)[None, :]
        sum_NM += tl.dot(w_NK, x_KM) * scale_NM
        w_ptrs_NK += WIDTH
        x_ptrs_KM += WIDTH
        x_scale_ptrs_M += num_rows
        w_scale_ptrs_N += scales
    if SPLIT_K > 1:
        cell_NM = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        plane: tl.constexpr = BLOCK_N * BLOCK_M
        partial_ptr += tile.to(tl.int64) * (SPLIT_K * plane)
        tl.store(partial_ptr + part * plane + cell_NM, sum_NM)
        if not last_to_arrive(counter_ptr + tile, SPLIT_K):
            return
        sum_NM = sum_of_planes(partial_ptr + cell_NM, plane, SPLIT_K)
    store_rows(y_ptr + first_m.to(tl.int64) * N, sum_NM, bias_ptr, bias_ptr, bias_ptr, first_n,
               num_rows - first_m, N, BIAS, False, BLOCK_N, BLOCK_M)  # fmt: skip
