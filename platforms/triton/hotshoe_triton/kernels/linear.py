"""Matrix products whose time is the reading of the weight: few rows of x, weights row-major.

Both kernels compute the transposed product, weight rows times x, so that few rows of x pad to
little. The input dimension may be split over programs; each writes its partial sums, and the one
that finishes last adds them in order, so results do not depend on timing.

Shape suffixes: N output features, K input features, M rows of x.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait


@triton.jit
def last_to_arrive(counter_ptr, SPLIT_K: tl.constexpr):
    """Count this program in; return whether the others have finished, and reset the counter."""
    tl.debug_barrier()
    last = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") == SPLIT_K - 1
    if last:
        tl.store(counter_ptr, 0)
    return last


@triton.jit
def sum_of_planes(first_ptrs, plane, PLANES: tl.constexpr):
    """Add what programs have stored, in their order; plane: elements from one to the next."""
    total = tl.load(first_ptrs, cache_modifier=".cg")
    for other in tl.static_range(1, PLANES):
        total += tl.load(first_ptrs + other * plane, cache_modifier=".cg")
    return total


@triton.jit
def store_rows(
    y_ptr, sum_NM, bias_ptr, w_scale_ptr, x_scale_ptr, first_n, num_rows, N,
    BIAS: tl.constexpr, SCALED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Scale, add the bias, and store a tile of y [num_rows, N]."""
    n_N = first_n + tl.arange(0, BLOCK_N)
    m_M = tl.arange(0, BLOCK_M)
    y_NM = sum_NM.to(tl.float32)
    if SCALED:
        w_scale_N = tl.load(w_scale_ptr + n_N, mask=n_N < N, other=0.0)
        x_scale_M = tl.load(x_scale_ptr + m_M, mask=m_M < num_rows, other=0.0)
        y_NM = y_NM * x_scale_M[None, :] * w_scale_N[:, None]
    if BIAS:
        y_NM += tl.load(bias_ptr + n_N, mask=n_N < N, other=0.0).to(tl.float32)[:, None]
    there_NM = (n_N < N)[:, None] & (m_M < num_rows)[None, :]
    y_ptrs_NM = y_ptr + m_M[None, :].to(tl.int64) * N + n_N[:, None]
    tl.store(y_ptrs_NM, y_NM.to(y_ptr.dtype.element_ty), mask=there_NM)


@triton.jit
def skinny(
    y_ptr, x_ptr, w_ptr, bias_ptr, w_scale_ptr, x_scale_ptr, partial_ptr, counter_ptr,
    num_rows, N, x_stride, w_stride,
    K: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Up to BLOCK_M rows on the matrix units. Grid: (N / BLOCK_N, SPLIT_K).

    Args:
        partial_ptr: [SPLIT_K, N padded to BLOCK_N, BLOCK_M] float32 or int32, scratch.
        counter_ptr: [N / BLOCK_N] int32, zero before and after.
    """
    STEPS: tl.constexpr = (K + BLOCK_K * SPLIT_K - 1) // (BLOCK_K * SPLIT_K)
    EVEN: tl.constexpr = K == STEPS * BLOCK_K * SPLIT_K
    kind: tl.constexpr = tl.int32 if w_ptr.dtype.element_ty == tl.int8 else tl.float32
    tile, part = tl.program_id(0), tl.program_id(1)
    n_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m_M = tl.arange(0, BLOCK_M)
    k_K = part * (STEPS * BLOCK_K) + tl.arange(0, BLOCK_K)
    # Rows behind the end read the last one; their products are not stored.
    w_ptrs_NK = w_ptr + tl.minimum(n_N, N - 1).to(tl.int64)[:, None] * w_stride + k_K[None, :]
    x_ptrs_KM = (
        x_ptr + tl.minimum(m_M, num_rows - 1).to(tl.int64)[None, :] * x_stride + k_K[:, None]
    )
    sum_NM = tl.zeros([BLOCK_N, BLOCK_M], kind)
    wait(CHAINED)
    for step in range(STEPS):
        if EVEN:
            w_NK = tl.load(w_ptrs_NK, eviction_policy="evict_first")
            x_KM = tl.load(x_ptrs_KM, eviction_policy="evict_last")
        else:
            there_K = k_K + step * BLOCK_K < K
            w_NK = tl.load(
                w_ptrs_NK, mask=there_K[None, :], other=0.0, eviction_policy="evict_first"
            )
            x_KM = tl.load(
                x_ptrs_KM, mask=there_K[:, None], other=0.0, eviction_policy="evict_last"
            )
        sum_NM = tl.dot(w_NK, x_KM, sum_NM, input_precision="ieee", out_dtype=kind)
        w_ptrs_NK += BLOCK_K
        x_ptrs_KM += BLOCK_K
    if SPLIT_K > 1:
        plane = tl.num_programs(0).to(tl.int64) * (BLOCK_N * BLOCK_M)
        cell_NM = n_N[:, None] * BLOCK_M + m_M[None, :]
        tl.store(partial_ptr + part * plane + cell_NM, sum_NM)
        if not last_to_arrive(counter_ptr + tile, SPLIT_K):
            return
        sum_NM = sum_of_planes(partial_ptr + cell_NM, plane, SPLIT_K)
    store_rows(y_ptr, sum_NM, bias_ptr, w_scale_ptr, x_scale_ptr, tile * BLOCK_N, num_rows, N,
               BIAS, SCALED, BLOCK_N, BLOCK_M)  # fmt: skip


@triton.jit
def gemv(
    y_ptr, x_ptr, w_ptr, bias_ptr, partial_ptr, counter_ptr, N, w_stride,
    K: tl.constexpr, BIAS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr, UNROLL: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One row without matrix units: wide loads straight into registers, the first of them before
    x is there.

    Grid: (N / BLOCK_N, SPLIT_K). Sums stay spread over a tile until the end of the loop.

    Args:
        partial_ptr: [SPLIT_K, N] float32, scratch.
        counter_ptr: [N / BLOCK_N] int32, zero before and after.
    """
    STEPS: tl.constexpr = (K + BLOCK_K * SPLIT_K - 1) // (BLOCK_K * SPLIT_K)
    EVEN: tl.constexpr = K == STEPS * BLOCK_K * SPLIT_K
    tile, part = tl.program_id(0), tl.program_id(1)
    n_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    lane_K = part * (STEPS * BLOCK_K) + tl.arange(0, BLOCK_K)
    w_ptrs_NK = w_ptr + tl.minimum(n_N, N - 1).to(tl.int64)[:, None] * w_stride + lane_K[None, :]
    w_NK = tl.load(w_ptrs_NK, mask=(lane_K < K)[None, :], other=0.0, eviction_policy="evict_first")
    wait(CHAINED)
    x_K = tl.load(x_ptr + lane_K, mask=lane_K < K, other=0.0)
    sum_NK = x_K.to(tl.float32)[None, :] * w_NK.to(tl.float32)
    for step in tl.range(1, STEPS, loop_unroll_factor=UNROLL):
        at = step * BLOCK_K
        if EVEN:
            w_NK = tl.load(w_ptrs_NK + at, eviction_policy="evict_first")
            x_K = tl.load(x_ptr + lane_K + at)
        else:
            there_K = lane_K + at < K
            w_NK = tl.load(
                w_ptrs_NK + at, mask=there_K[None, :], other=0.0, eviction_policy="evict_first"
            )
            x_K = tl.load(x_ptr + lane_K + at, mask=there_K, other=0.0)
        sum_NK += x_K.to(tl.float32)[None, :] * w_NK.to(tl.float32)
    sum_N = tl.sum(sum_NK, 1)
    there_N = n_N < N
    if SPLIT_K > 1:
        tl.store(partial_ptr + part * N + n_N, sum_N, mask=there_N)
        if not last_to_arrive(counter_ptr + tile, SPLIT_K):
            return
        sum_N = tl.zeros([BLOCK_N], tl.float32)
        for other in tl.static_range(SPLIT_K):
            cells = partial_ptr + other * N + n_N
            sum_N += tl.load(cells, mask=there_N, other=0.0, cache_modifier=".cg")
    if BIAS:
        sum_N += tl.load(bias_ptr + n_N, mask=there_N, other=0.0).to(tl.float32)
    tl.store(y_ptr + n_N, sum_N.to(y_ptr.dtype.element_ty), mask=there_N)


@triton.jit
def scaled_gemm(
    y_ptr, x_ptr, w_ptr, bias_ptr, w_scale_ptr, x_scale_ptr, num_rows, N, x_stride, w_stride,
    K: tl.constexpr, BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """8-bit x and weight, many rows. Grid: (tiles of y,), GROUP_M rows of tiles at a time."""
    kind: tl.constexpr = tl.int32 if w_ptr.dtype.element_ty == tl.int8 else tl.float32
    tiles_m, tiles_n = tl.cdiv(num_rows, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = tl.program_id(0) // (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    inside = tl.program_id(0) % (GROUP_M * tiles_n)
    m_M = (group * GROUP_M + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    n_N = (inside // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    k_K = tl.arange(0, BLOCK_K)
    x_ptrs_MK = (
        x_ptr + tl.minimum(m_M, num_rows - 1).to(tl.int64)[:, None] * x_stride + k_K[None, :]
    )
    w_ptrs_KN = w_ptr + tl.minimum(n_N, N - 1).to(tl.int64)[None, :] * w_stride + k_K[:, None]
    sum_MN = tl.zeros([BLOCK_M, BLOCK_N], kind)
    for first in range(0, K, BLOCK_K):
        if K % BLOCK_K == 0:
            x_MK = tl.load(x_ptrs_MK)
            w_KN = tl.load(w_ptrs_KN)
        else:
            x_MK = tl.load(x_ptrs_MK, mask=(k_K + first < K)[None, :], other=0.0)
            w_KN = tl.load(w_ptrs_KN, mask=(k_K + first < K)[:, None], other=0.0)
        sum_MN = tl.dot(x_MK, w_KN, sum_MN, out_dtype=kind)
        x_ptrs_MK += BLOCK_K
        w_ptrs_KN += BLOCK_K
    x_scale_M = tl.load(x_scale_ptr + m_M, mask=m_M < num_rows, other=0.0)
    w_scale_N = tl.load(w_scale_ptr + n_N, mask=n_N < N, other=0.0)
    y_MN = sum_MN.to(tl.float32) * x_scale_M[:, None] * w_scale_N[None, :]
    if BIAS:
        y_MN += tl.load(bias_ptr + n_N, mask=n_N < N, other=0.0).to(tl.float32)[None, :]
    there_MN = (m_M < num_rows)[:, None] & (n_N < N)[None, :]
    y_ptrs_MN = y_ptr + m_M[:, None].to(tl.int64) * N + n_N[None, :]
    tl.store(y_ptrs_MN, y_MN.to(y_ptr.dtype.element_ty), mask=there_MN)
