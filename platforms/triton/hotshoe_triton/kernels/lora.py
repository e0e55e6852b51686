"""Low-rank adapters: x times a, then b.

Few tokens are computed each for itself: a program reads a wide tile of a or b, which takes longer
than all else. Of more, a tile is up to BLOCK_M tokens of one adapter, in the order of adapters.
Which tiles there are is found on the device, so that steps are recorded: grids hold the most that
so many tokens can make, and programs without a tile return. The numbers between both products stay
float32, as sums of some columns each, which the second product adds up in order. Nothing here
depends on timing.

Who has which adapter, and the adapters themselves, are written by copies before a step, never by a
kernel that others are chained to; so they are read before waiting. Where `LoraSpec.late` says
otherwise, nothing is chained.

Shape suffixes: A adapters, M tokens, R ranks, S sums, K input features, N output features.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait


@triton.jit
def shrink_each(
    low_ptr, x_ptr, a_ptr, places_ptr, num_tokens, x_stride,
    K: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply each token by its adapter's a. Grid: (num_tokens, RANK / BLOCK_R, K / BLOCK_K).

    Args:
        low_ptr: [K / BLOCK_K, num_tokens, RANK] float32, written where tokens have an adapter.
        a_ptr: [adapters, RANK, K].
        places_ptr: [num_tokens] int32, -1 for no adapter.
    """
    token = tl.program_id(0)
    place = tl.load(places_ptr + token)
    r_R = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    k_K = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K)
    there_R, there_K = (r_R < RANK) & (place >= 0), k_K < K
    a_ptr += tl.maximum(place, 0).to(tl.int64) * (RANK * K)
    a_ptrs_RK = a_ptr + r_R[:, None] * K + k_K[None, :]
    a_RK = tl.load(a_ptrs_RK, mask=there_R[:, None] & there_K[None, :], other=0.0)
    wait(CHAINED)
    if place < 0:
        return
    x_K = tl.load(x_ptr + token.to(tl.int64) * x_stride + k_K, mask=there_K, other=0.0)
    low_R = tl.sum(a_RK.to(tl.float32) * x_K.to(tl.float32)[None, :], 1)
    low_ptr += (tl.program_id(2).to(tl.int64) * num_tokens + token) * RANK
    tl.store(low_ptr + r_R, low_R, mask=there_R)


@triton.jit
def expand_each(
    y_ptr, low_ptr, b_ptr, places_ptr, blocks_ptr, num_tokens, y_stride,
    N: tl.constexpr, RANK: tl.constexpr, SHARE: tl.constexpr, SUMS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr, ALIGN: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply what `shrink_each` wrote by b, and add it to y. Grid: (num_tokens, blocks).

    Args:
        b_ptr: [adapters, RANK, N].
        blocks_ptr: See `expand`; all of them are multiples of ALIGN, but for ranks.
    """
    token = tl.program_id(0)
    place = tl.load(places_ptr + token)
    blocks_ptr += tl.program_id(1) * 3
    n_N = tl.multiple_of(tl.load(blocks_ptr), ALIGN) + tl.arange(0, BLOCK_N)
    there_N = n_N < tl.multiple_of(tl.load(blocks_ptr + 1), ALIGN)
    first_r = tl.load(blocks_ptr + 2)
    r_R, s_S = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_S)
    there_R = (r_R < SHARE) & (place >= 0)
    b_ptr += tl.maximum(place, 0).to(tl.int64) * (RANK * N)
    b_ptrs_RN = b_ptr + (first_r + r_R)[:, None] * N + n_N[None, :]
    b_RN = tl.load(b_ptrs_RN, mask=there_R[:, None] & there_N[None, :], other=0.0)
    wait(CHAINED)
    if place < 0:
        return
    y_ptrs_N = y_ptr + token.to(tl.int64) * y_stride + n_N
    y_N = tl.load(y_ptrs_N, mask=there_N, other=0.0).to(tl.float32)
    low_ptrs_SR = low_ptr + (s_S.to(tl.int64) * num_tokens + token)[:, None] * RANK
    low_ptrs_SR += (first_r + r_R)[None, :]
    there_SR = (s_S < SUMS)[:, None] & (r_R < SHARE)[None, :]
    low_R = tl.sum(tl.load(low_ptrs_SR, mask=there_SR, other=0.0), 0)
    y_N += tl.sum(b_RN.to(tl.float32) * low_R[:, None], 0)
    tl.store(y_ptrs_N, y_N.to(y_ptr.dtype.element_ty), mask=there_N)


@triton.jit
def tile_of(starts_ptr, tile, ADAPTERS: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return a tile's adapter, its first token in their order, and the number of its tokens: 0
    behind the last tile."""
    a_A = tl.arange(0, BLOCK_A)
    first_A = tl.load(starts_ptr + a_A, mask=a_A < ADAPTERS, other=0)
    end_A = tl.load(starts_ptr + a_A + 1, mask=a_A < ADAPTERS, other=0)
    tiles_A = (end_A - first_A + BLOCK_M - 1) // BLOCK_M
    to_A = tl.cumsum(tiles_A, 0)
    place = tl.sum((to_A <= tile).to(tl.int32), 0)
    begin_A = first_A + (tile - to_A + tiles_A) * BLOCK_M
    begin = tl.sum(tl.where(a_A == place, begin_A, 0), 0)
    end = tl.sum(tl.where(a_A == place, end_A, 0), 0)
    return place, begin, tl.minimum(end - begin, BLOCK_M)


@triton.jit
def shrink(
    low_ptr, x_ptr, a_ptr, order_ptr, starts_ptr, num_tokens, x_stride,
    K: tl.constexpr, RANK: tl.constexpr, ADAPTERS: tl.constexpr, BLOCK_A: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply tokens by a. Grid: (tiles, RANK / BLOCK_R, SPLIT_K).

    Args:
        low_ptr: [SPLIT_K, num_tokens, RANK] float32, written where tokens have an adapter.
        a_ptr: [ADAPTERS, RANK, K].
    """
    STEPS: tl.constexpr = (K + BLOCK_K * SPLIT_K - 1) // (BLOCK_K * SPLIT_K)
    EVEN: tl.constexpr = K == STEPS * BLOCK_K * SPLIT_K
    place, begin, count = tile_of(starts_ptr, tl.program_id(0), ADAPTERS, BLOCK_A, BLOCK_M)
    m_M = tl.arange(0, BLOCK_M)
    r_R = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    k_K = tl.program_id(2) * (STEPS * BLOCK_K) + tl.arange(0, BLOCK_K)
    there_M, there_R = m_M < count, r_R < RANK
    token_M = tl.load(order_ptr + begin + m_M, mask=there_M, other=0).to(tl.int64)
    wait(CHAINED)
    if count <= 0:
        return
    x_ptrs_MK = x_ptr + token_M[:, None] * x_stride + k_K[None, :]
    a_ptrs_RK = a_ptr + place.to(tl.int64) * (RANK * K) + r_R[:, None] * K + k_K[None, :]
    low_MR = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for step in range(STEPS):
        if EVEN:
            x_MK = tl.load(x_ptrs_MK, mask=there_M[:, None], other=0.0)
            a_RK = tl.load(a_ptrs_RK, mask=there_R[:, None], other=0.0)
        else:
            there_K = k_K + step * BLOCK_K < K
            x_MK = tl.load(x_ptrs_MK, mask=there_M[:, None] & there_K[None, :], other=0.0)
            a_RK = tl.load(a_ptrs_RK, mask=there_R[:, None] & there_K[None, :], other=0.0)
        low_MR = tl.dot(x_MK, tl.trans(a_RK), low_MR, input_precision="ieee")
        x_ptrs_MK += BLOCK_K
        a_ptrs_RK += BLOCK_K
    low_ptr += (tl.program_id(2).to(tl.int64) * num_tokens + begin) * RANK
    there_MR = there_M[:, None] & there_R[None, :]
    tl.store(low_ptr + m_M[:, None] * RANK + r_R[None, :], low_MR, mask=there_MR)


@triton.jit
def expand(
    y_ptr, low_ptr, b_ptr, order_ptr, starts_ptr, blocks_ptr, num_tokens, y_stride,
    N: tl.constexpr, RANK: tl.constexpr, SHARE: tl.constexpr, ADAPTERS: tl.constexpr,
    BLOCK_A: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLIT_K: tl.constexpr, ALIGN: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply what `shrink` wrote by b, and add it to y. Grid: (tiles, blocks).

    Args:
        b_ptr: [ADAPTERS, RANK, N].
        blocks_ptr: [blocks, 3] int32: the first output, the end of its matrix's outputs, and the
            first of the SHARE ranks that this matrix has. Outputs are multiples of ALIGN.
    """
    place, begin, count = tile_of(starts_ptr, tl.program_id(0), ADAPTERS, BLOCK_A, BLOCK_M)
    blocks_ptr += tl.program_id(1) * 3
    n_N = tl.multiple_of(tl.load(blocks_ptr), ALIGN) + tl.arange(0, BLOCK_N)
    end = tl.multiple_of(tl.load(blocks_ptr + 1), ALIGN)
    first_r = tl.load(blocks_ptr + 2)
    m_M = tl.arange(0, BLOCK_M)
    there_M, there_N = m_M < count, n_N < end
    token_M = tl.load(order_ptr + begin + m_M, mask=there_M, other=0).to(tl.int64)
    wait(CHAINED)
    if count <= 0:
        return
    low_ptr += begin.to(tl.int64) * RANK + first_r
    b_ptr += place.to(tl.int64) * (RANK * N) + first_r * N
    sum_MN = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, SHARE, BLOCK_R):
        r_R = first + tl.arange(0, BLOCK_R)
        there_R = r_R < SHARE
        b_ptrs_RN = b_ptr + r_R[:, None] * N + n_N[None, :]
        b_RN = tl.load(b_ptrs_RN, mask=there_R[:, None] & there_N[None, :], other=0.0)
        low_MR = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        low_ptrs_MR = low_ptr + m_M[:, None] * RANK + r_R[None, :]
        for _ in range(SPLIT_K):
            low_MR += tl.load(low_ptrs_MR, mask=there_M[:, None] & there_R[None, :], other=0.0)
            low_ptrs_MR += num_tokens * RANK
        sum_MN = tl.dot(low_MR.to(b_RN.dtype), b_RN, sum_MN, input_precision="ieee")
    y_ptrs_MN = y_ptr + token_M[:, None] * y_stride + n_N[None, :]
    there_MN = there_M[:, None] & there_N[None, :]
    y_MN = tl.load(y_ptrs_MN, mask=there_MN, other=0.0).to(tl.float32) + sum_MN
    tl.store(y_ptrs_MN, y_MN.to(y_ptr.dtype.element_ty), mask=there_MN)
