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
from hotshoe_triton.kernels.moe import BLOCK_FIELDS, finish, piece, rows_of

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
def largest_of(whole_ptr, WHOLES: tl.constexpr, BLOCK_W: tl.constexpr):
    """Return the one scale of x: experts each have one, or zero; NaN where none has any."""
    at_W = tl.arange(0, BLOCK_W)
    whole = tl.max(tl.load(whole_ptr + at_W, mask=at_W < WHOLES, other=0.0), 0)
    return tl.where(whole > 0, whole, float("nan"))


@triton.jit
def quantize_groups(
    out_ptr, scale_ptr, x_ptr, whole_ptr, x_stride, GROUPS: tl.constexpr, SIZE: tl.constexpr,
    WHOLES: tl.constexpr, BLOCK_W: tl.constexpr, AT_ONCE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Quantize each group of SIZE columns. Grid: (rows, GROUPS / AT_ONCE).

    A group that holds NaN or infinity has NaN for its scale.

    Args:
        out_ptr: [rows, GROUPS * SIZE / 2] uint8, the even column in the low bits.
        scale_ptr: [rows, GROUPS], 8-bit floats for groups of 16, bytes of exponents for 32.
        x_ptr: [rows, GROUPS * SIZE].
        whole_ptr: [WHOLES] float32, the largest of which is the scale of all x, for groups of 16.
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
        whole = largest_of(whole_ptr, WHOLES, BLOCK_W)
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
def product(
    x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, row_M, row_N, part, x_stride,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STEPS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return [BLOCK_N, BLOCK_M] float32, the product of rows of W and x by STEPS tiles of columns.

    Args:
        row_M, row_N: Which rows, int64.
        part: Which STEPS tiles. With EVEN they end with the rows; otherwise groups of zeros with
            scales of zero lie behind.
    """
    K: tl.constexpr = GROUPS * SIZE
    BYTES: tl.constexpr = BLOCK_K // 2
    SCALES: tl.constexpr = BLOCK_K // SIZE
    byte_K = part * (STEPS * BYTES) + tl.arange(0, BYTES)
    at_G = part * (STEPS * SCALES) + tl.arange(0, SCALES)
    x_ptrs_KM = x_ptr + row_M[None, :] * x_stride + byte_K[:, None]
    w_ptrs_NK = w_ptr + row_N[:, None] * (K // 2) + byte_K[None, :]
    x_scale_ptrs_MG = x_scale_ptr + row_M[:, None] * GROUPS + at_G[None, :]
    w_scale_ptrs_NG = w_scale_ptr + row_N[:, None] * GROUPS + at_G[None, :]
    sum_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in range(STEPS):
        there_K, there_G = byte_K < K // 2 - step * BYTES, at_G < GROUPS - step * SCALES
        w_NK = piece(w_ptrs_NK, there_K[None, :], EVEN)
        x_KM = piece(x_ptrs_KM, there_K[:, None], EVEN)
        w_NG = piece(w_scale_ptrs_NG, there_G[None, :], EVEN)
        x_MG = piece(x_scale_ptrs_MG, there_G[None, :], EVEN)
        sum_NM = tl.dot_scaled(w_NK, w_NG, FLOAT, x_KM, x_MG, FLOAT, sum_NM)
        w_ptrs_NK += BYTES
        x_ptrs_KM += BYTES
        w_scale_ptrs_NG += SCALES
        x_scale_ptrs_MG += SCALES
    return sum_NM


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
    wait(CHAINED)
    sum_NM = product(x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, row_M, row_N, part, K // 2, GROUPS,
                     SIZE, BLOCK_M, BLOCK_N, BLOCK_K, STEPS, EVEN)  # fmt: skip
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


@triton.jit
def grouped_fp4(
    y_ptr, x_ptr, x_scale_ptr, x_whole_ptr, w_ptr, w_scale_ptr, whole_ptr, bias_ptr, order_ptr,
    blocks_ptr, x_stride,
    N: tl.constexpr, K: tl.constexpr, TOP_K: tl.constexpr, BIAS: tl.constexpr, FIRST: tl.constexpr,
    SORTED: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
    GATE_LIMIT: tl.constexpr,
    ALPHA: tl.constexpr, SHIFT: tl.constexpr, SIZE: tl.constexpr, WHOLES: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply blocks of pairs by their expert's matrix; see `kernels.moe.grouped`.

    Args:
        x_ptr, x_scale_ptr, x_whole_ptr: As `quantize_groups` has them: bytes, scales of groups, and
            the scales of which the largest counts for all.
        w_ptr, w_scale_ptr: [experts, N, K / 2] and [experts, N, K / SIZE] bytes; with GATED 2 * N
            for N, gates first.
        whole_ptr: [experts, N] float32, the scales of whole matrices, likewise.
        BLOCK_N: Rows of a matrix; with GATED gates and ups take turns in a tile, since the compiler
            makes one product of a tile of x, not two.
    """
    HALVES: tl.constexpr = 2 if GATED else 1
    OUTPUTS: tl.constexpr = BLOCK_N // HALVES
    GROUPS: tl.constexpr = K // SIZE
    TILES: tl.constexpr = (N + OUTPUTS - 1) // OUTPUTS
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    block, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    wait(CHAINED)
    blocks_ptr += block * BLOCK_FIELDS
    expert, begin, end = tl.load(blocks_ptr), tl.load(blocks_ptr + 1), tl.load(blocks_ptr + 2)
    if begin >= end:  # no pairs, also where nobody has cut any blocks and all fields are zeros
        return
    m_M = begin + tl.arange(0, BLOCK_M)
    # Pairs and rows behind the end read the last one; their products are not stored.
    at_M = tl.minimum(m_M, end - 1)
    pair_M = tl.load(order_ptr + at_M)
    from_M, to_M = rows_of(at_M, pair_M, TOP_K, FIRST, SORTED)
    lane_N, first_row = tl.arange(0, BLOCK_N), expert.to(tl.int64) * (HALVES * N)
    row_N = tl.minimum(tile * OUTPUTS + lane_N // HALVES, N - 1) + lane_N % HALVES * N
    row_N = first_row + row_N
    sum_NM = product(x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, from_M.to(tl.int64), row_N, 0,
                     x_stride, GROUPS, SIZE, BLOCK_M, BLOCK_N, BLOCK_K, STEPS,
                     K % BLOCK_K == 0)  # fmt: skip
    whole_N = tl.load(whole_ptr + row_N)
    if SIZE == 16:
        whole_N *= largest_of(x_whole_ptr, WHOLES, BLOCK_W)
    sum_NM *= whole_N[:, None]
    if GATED:
        both_NMH = tl.permute(tl.reshape(sum_NM, [OUTPUTS, 2, BLOCK_M]), [0, 2, 1])
        gate_NM, up_NM = tl.split(both_NMH)
    else:
        gate_NM, up_NM = sum_NM, sum_NM
    n_N = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    finish(y_ptr, gate_NM, up_NM, bias_ptr + first_row, n_N, m_M, to_M, end, N, BIAS, FIRST, GATED,
           ACTIVATION, LIMIT, GATE_LIMIT, ALPHA, SHIFT)  # fmt: skip
