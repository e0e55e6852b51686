"""4-bit floats on both sides of a product, a scale for each group of columns.

Matrix units of block-scaled products take numbers and scales as they are stored. Groups of 16 have
8-bit floats for scales, beside one scale of the whole operand; groups of 32 have powers of two.
Sources: OCP Microscaling Formats 1.0; the PTX ISA, `mma` and `tcgen05.mma` with `.block_scale`.

Shape suffixes: N output features, K bytes of a tile's columns, M rows of x, G groups of a row.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.linear import last_to_arrive, store_rows, sum_of_planes

#: The largest number of four bits, and of 8-bit scales.
LARGEST = tl.constexpr(6.0)
LARGEST_SCALE = tl.constexpr(448.0)
#: One sign bit, two of exponent, one of mantissa.
FLOAT = tl.constexpr("e2m1")
INFINITY = tl.constexpr(0x7F800000)


@triton.jit
def codes(size):
    """Return the bits of 4-bit floats nearest to numbers >= 0, ties to even, at most 6."""
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    return code + (size > 5.0).to(tl.int32)


@triton.jit
def quantize_groups(
    out_ptr, scale_ptr, x_ptr, whole_ptr, x_stride, GROUPS: tl.constexpr, SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Quantize each group of SIZE columns. Grid: (rows, GROUPS / AT_ONCE).

    A group that holds NaN or infinity has NaN for its scale.

    Args:
        out_ptr: [rows, GROUPS * SIZE / 2] uint8, the even column in the low bits.
        scale_ptr: [rows, GROUPS], 8-bit floats for groups of 16, bytes of exponents for 32.
        x_ptr: [rows, GROUPS * SIZE].
        whole_ptr: [1] float32, the scale of all x for groups of 16.
    """
    row = tl.program_id(0).to(tl.int64)
    group_G = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    column_GK = group_G[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    there_G = group_G < GROUPS
    there_GK = there_G[:, None] & (column_GK >= 0)
    wait(CHAINED)
    x_GK = tl.load(x_ptr + row * x_stride + column_GK, mask=there_GK, other=0.0).to(tl.float32)
    # NaN lies behind infinity in the order of bits.
    bits_G = tl.max(x_GK.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    largest_G = bits_G.to(tl.float32, bitcast=True)
    if SIZE == 16:
        whole = tl.load(whole_ptr)
        share_G = tl.div_rn(tl.div_rn(largest_G, LARGEST), tl.zeros_like(largest_G) + whole)
        share_G = tl.where(share_G > LARGEST_SCALE, LARGEST_SCALE, share_G)
        share_G = tl.where(bits_G >= INFINITY, float("nan"), share_G)
        scale_G = share_G.to(scale_ptr.dtype.element_ty)
        by_G = scale_G.to(tl.float32) * whole
    else:  # so that the largest is less than 7, which is nearest to 6: a quarter is carried over
        exponent_G = tl.maximum((bits_G + (1 << 21) >> 23) - 2, 0)
        scale_G = tl.where(bits_G >= INFINITY, 255, exponent_G).to(tl.uint8)
        by_G = tl.where(exponent_G == 0, 1 << 22, exponent_G << 23).to(tl.float32, bitcast=True)
    by_GK = tl.broadcast_to(tl.where(by_G > 0, by_G, 1.0)[:, None], x_GK.shape)
    code_GK = codes(tl.div_rn(tl.abs(x_GK), by_GK)) | (x_GK < 0).to(tl.int32) << 3
    even_GK, odd_GK = tl.split(tl.reshape(code_GK, [AT_ONCE, SIZE // 2, 2]))
    byte_GK = group_G[:, None] * (SIZE // 2) + tl.arange(0, SIZE // 2)[None, :]
    there_GK = there_G[:, None] & (byte_GK >= 0)
    packed_GK = (even_GK | odd_GK << 4).to(tl.uint8)
    tl.store(out_ptr + row * (GROUPS * SIZE // 2) + byte_GK, packed_GK, mask=there_GK)
    tl.store(scale_ptr + row * GROUPS + group_G, scale_G, mask=there_G)


@triton.jit
def loaded(ptrs, there, EVEN: tl.constexpr):
    """Return a tile; groups of zeros with scales of zero lie behind the end of uneven rows."""
    if EVEN:
        found = tl.load(ptrs)
    else:
        found = tl.load(ptrs, mask=there, other=0.0)
    return found


@triton.jit
def scaled_fp4(
    y_ptr, x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, whole_ptr, bias_ptr, partial_ptr, counter_ptr,
    num_rows, N, GROUPS: tl.constexpr, SIZE: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    GROUP_M: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply; matrix units scale each group. Grid: (tiles of y, SPLIT_K).

    Args:
        x_ptr, w_ptr: [num_rows, K / 2] and [N, K / 2] uint8, with K = GROUPS * SIZE.
        x_scale_ptr, w_scale_ptr: [num_rows, GROUPS] and [N, GROUPS].
        whole_ptr: [N] float32, what each row of the product is scaled by.
        partial_ptr: [tiles, SPLIT_K, BLOCK_N, BLOCK_M] float32, scratch.
        counter_ptr: [tiles] int32, zero before and after.
        GROUP_M: Tiles of x's rows that programs share which run together.
    """
    K: tl.constexpr = GROUPS * SIZE
    BYTES: tl.constexpr = BLOCK_K // 2
    SCALES: tl.constexpr = BLOCK_K // SIZE
    STEPS: tl.constexpr = (K + BLOCK_K * SPLIT_K - 1) // (BLOCK_K * SPLIT_K)
    EVEN: tl.constexpr = K == STEPS * BLOCK_K * SPLIT_K
    tiles_m, tiles_n = tl.cdiv(num_rows, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile, part = tl.program_id(0), tl.program_id(1)
    group, inside = tile // (GROUP_M * tiles_n), tile % (GROUP_M * tiles_n)
    high = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    first_m = (group * GROUP_M + inside % high) * BLOCK_M
    first_n = inside // high * BLOCK_N
    # Rows behind the end read the last one; their products are not stored.
    row_M = tl.minimum(first_m + tl.arange(0, BLOCK_M), num_rows - 1).to(tl.int64)
    row_N = tl.minimum(first_n + tl.arange(0, BLOCK_N), N - 1).to(tl.int64)
    byte_K = part * (STEPS * BYTES) + tl.arange(0, BYTES)
    at_G = part * (STEPS * SCALES) + tl.arange(0, SCALES)
    x_ptrs_KM = x_ptr + row_M[None, :] * (K // 2) + byte_K[:, None]
    w_ptrs_NK = w_ptr + row_N[:, None] * (K // 2) + byte_K[None, :]
    x_scale_ptrs_MG = x_scale_ptr + row_M[:, None] * GROUPS + at_G[None, :]
    w_scale_ptrs_NG = w_scale_ptr + row_N[:, None] * GROUPS + at_G[None, :]
    sum_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    wait(CHAINED)
    for step in range(STEPS):
        there_K, there_G = byte_K < K // 2 - step * BYTES, at_G < GROUPS - step * SCALES
        w_NK = loaded(w_ptrs_NK, there_K[None, :], EVEN)
        x_KM = loaded(x_ptrs_KM, there_K[:, None], EVEN)
        w_NG = loaded(w_scale_ptrs_NG, there_G[None, :], EVEN)
        x_MG = loaded(x_scale_ptrs_MG, there_G[None, :], EVEN)
        sum_NM = tl.dot_scaled(w_NK, w_NG, FLOAT, x_KM, x_MG, FLOAT, sum_NM)
        w_ptrs_NK += BYTES
        x_ptrs_KM += BYTES
        w_scale_ptrs_NG += SCALES
        x_scale_ptrs_MG += SCALES
    if SPLIT_K > 1:
        cell_NM = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        plane: tl.constexpr = BLOCK_N * BLOCK_M
        partial_ptr += tile.to(tl.int64) * (SPLIT_K * plane)
        tl.store(partial_ptr + part * plane + cell_NM, sum_NM)
        if not last_to_arrive(counter_ptr + tile, SPLIT_K):
            return
        sum_NM = sum_of_planes(partial_ptr + cell_NM, plane, SPLIT_K)
    sum_NM *= tl.load(whole_ptr + row_N)[:, None]
    store_rows(y_ptr + first_m.to(tl.int64) * N, sum_NM, bias_ptr, bias_ptr, bias_ptr, first_n,
               num_rows - first_m, N, BIAS, False, BLOCK_N, BLOCK_M)  # fmt: skip
