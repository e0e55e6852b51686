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


#: Two integers of four bits of a word, 16 bits apart, become two floats side by side: their bits
#: go into mantissas of 128 or 1024, and that power leaves with the zero point.
BFLOATS = tl.constexpr(
    "{ .reg .b32 one; mov.b32 one, 0x3f803f80; lop3.b32 $0, $1, 0x000f000f, 0x43004300, 0xea; "
    "fma.rn.bf16x2 $0, $0, one, $2; }"
)
HALVES = tl.constexpr(
    "{ .reg .b32 one; mov.b32 one, 0x3c003c00; lop3.b32 $0, $1, 0x000f000f, 0x64006400, 0xea; "
    "fma.rn.f16x2 $0, $0, one, $2; }"
)
#: A fraction of a zero point goes behind its whole part, so that no digit is lost to the power.
ADD_BFLOATS = tl.constexpr(
    "{ .reg .b32 one; mov.b32 one, 0x3f803f80; fma.rn.bf16x2 $0, $1, one, $2; }"
)
ADD_HALVES = tl.constexpr(
    "{ .reg .b32 one; mov.b32 one, 0x3c003c00; fma.rn.f16x2 $0, $1, one, $2; }"
)


@triton.jit
def side_by_side(low_N, high_N, DTYPE: tl.constexpr):
    """Return the bits of two numbers of 16 bits each as one integer."""
    low_N = low_N.to(DTYPE).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return low_N | high_N.to(DTYPE).to(tl.int16, bitcast=True).to(tl.int32) << 16


@triton.jit
def whole_part(zero_N):
    """Return the part of zero points that numbers of 16 bits hold beside the powers of two."""
    return tl.clamp(zero_N, 0.0, 15.0).to(tl.int32).to(tl.float32)


@triton.jit
def by_pairs(ASM: tl.constexpr, word_NK, row_N):
    """Apply an instruction to two numbers at once, and to two of each row."""
    return tl.inline_asm_elementwise(
        ASM, "=&r,r,r", [word_NK, row_N[:, None]], tl.int32, is_pure=True, pack=1
    )


@triton.jit
def two_places(
    word_NK, zero_N, other_N, power_N, place: tl.constexpr, BITS: tl.constexpr,
    FRACTION: tl.constexpr, PAIRED: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Return integers `place` and the one half a word behind, less their zero points, as DTYPE.

    Args:
        zero_N, other_N: Zero points of both.
        PAIRED: By instructions of NVIDIA's that make two numbers of 16 bits at once.
    """
    if PAIRED:
        BASE: tl.constexpr = -128.0 if tl.bfloat16 == DTYPE else -1024.0
        MAKE: tl.constexpr = BFLOATS if tl.bfloat16 == DTYPE else HALVES
        ADD: tl.constexpr = ADD_BFLOATS if tl.bfloat16 == DTYPE else ADD_HALVES
        whole_N, other_whole_N = zero_N, other_N
        if FRACTION:
            whole_N, other_whole_N = whole_part(zero_N), whole_part(other_N)
        minus_N = side_by_side(BASE - whole_N, BASE - other_whole_N, DTYPE)
        pair_NK = by_pairs(MAKE, word_NK >> (BITS * place), minus_N)
        if FRACTION:
            pair_NK = by_pairs(
                ADD, pair_NK, side_by_side(whole_N - zero_N, other_whole_N - other_N, DTYPE)
            )
        low_NK = pair_NK.to(tl.int16).to(DTYPE, bitcast=True)
        high_NK = (pair_NK >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    else:
        OTHER: tl.constexpr = place + 16 // BITS
        low_NK = unpacked(word_NK, zero_N, power_N, place, BITS, FRACTION).to(DTYPE)
        high_NK = unpacked(word_NK, other_N, power_N, OTHER, BITS, FRACTION).to(DTYPE)
    return low_NK, high_NK


@triton.jit
def columns(x_ptrs_KM, k_K, K: tl.constexpr, WHOLE: tl.constexpr):
    """Load columns of x; those behind the last are zero. WHOLE: There are none."""
    if WHOLE:
        x_KM = tl.load(x_ptrs_KM)
    else:
        x_KM = tl.load(x_ptrs_KM, mask=(k_K < K)[:, None], other=0.0)
    return x_KM


@triton.jit
def group_at(column, K: tl.constexpr, GROUP: tl.constexpr, N):
    """Return where the scales of a column's group begin."""
    return tl.minimum(column, K - 1) // GROUP * N


@triton.jit
def twice(value):
    """Return a value for two names."""
    return value, value


@triton.jit
def both(ptrs_N, at, other_at):
    """Load what two groups have, as float32."""
    return tl.load(ptrs_N + at).to(tl.float32), tl.load(ptrs_N + other_at).to(tl.float32)


@triton.jit
def scaled(low_NM, high_NM, scale_ptrs_N, at, other_at):
    """Return the sums of two groups, each times its scales."""
    scale_N, other_scale_N = both(scale_ptrs_N, at, other_at)
    return low_NM * scale_N[:, None] + high_NM * other_scale_N[:, None]


@triton.jit
def cells(n_N, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, SPLIT_K: tl.constexpr):
    """Return where a tile lies in a plane of partial sums, a plane's size, and all planes' one."""
    cell_NM = n_N[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    plane = tl.num_programs(0).to(tl.int64) * (BLOCK_N * BLOCK_M)
    return cell_NM, plane, tl.program_id(2) * SPLIT_K * plane


@triton.jit
def grouped(
    y_ptr, x_ptr, word_ptr, scale_ptr, zero_ptr, bias_ptr, power_ptr, partial_ptr, counter_ptr,
    num_rows, N, x_stride, K: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    HALF: tl.constexpr, ZEROS: tl.constexpr, FRACTION: tl.constexpr, BIAS: tl.constexpr,
    SPAN: tl.constexpr, PAIRED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLIT_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply rows of x by packed integers. Grid: (N / BLOCK_N, SPLIT_K, rows / BLOCK_M).

    Sums of a group are scaled in float32. A chunk is whole groups, or a group is whole chunks.

    Args:
        word_ptr: [chunks, N, SPAN] int32. scale_ptr, zero_ptr: [groups, N].
        partial_ptr: [rows / BLOCK_M, SPLIT_K, N padded, BLOCK_M] float32, scratch.
        counter_ptr: [rows / BLOCK_M, N / BLOCK_N] int32, zero before and after.
    """
    HALF_WORD: tl.constexpr = 16 // BITS
    CHUNK: tl.constexpr = 2 * HALF_WORD * SPAN
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
    zero_N, other_N = twice(tl.full([BLOCK_N], HALF, tl.float32))
    power_N = tl.load(power_ptr + n_N * 0)
    wait(CHAINED)
    for step in range(tl.minimum(STEPS, CHUNKS - first)):
        word_NK = tl.load(word_ptrs_NK, eviction_policy="evict_first")
        word_ptrs_NK += N * SPAN
        low_NM, high_NM = twice(tl.zeros([BLOCK_N, BLOCK_M], tl.float32))
        for place in tl.static_range(HALF_WORD):
            column = (first + step) * CHUNK + place * SPAN
            other = column + HALF_WORD * SPAN
            at, other_at = group_at(column, K, GROUP, N), group_at(other, K, GROUP, N)
            if ZEROS and place * SPAN % GROUP == 0:
                zero_N, other_N = both(zero_ptr + row_N, at, other_at)
            x_KM = columns(x_ptrs_KM + column, column + k_K, K, K % CHUNK == 0)
            w_NK, other_NK = two_places(
                word_NK, zero_N, other_N, power_N, place, BITS, FRACTION, PAIRED, x_KM.dtype
            )
            low_NM = tl.dot(w_NK, x_KM, low_NM, input_precision="ieee")
            x_KM = columns(x_ptrs_KM + other, other + k_K, K, K % CHUNK == 0)
            high_NM = tl.dot(other_NK, x_KM, high_NM, input_precision="ieee")
            if (place + 1) * SPAN % GROUP == 0 or place == HALF_WORD - 1:
                sum_NM += scaled(low_NM, high_NM, scale_ptr + row_N, at, other_at)
                low_NM, high_NM = twice(tl.zeros([BLOCK_N, BLOCK_M], tl.float32))
    if SPLIT_K > 1:
        cell_NM, plane, begin = cells(n_N, BLOCK_N, BLOCK_M, SPLIT_K)
        partial_ptr += begin
        tl.store(partial_ptr + part * plane + cell_NM, sum_NM)
        if not last_to_arrive(counter_ptr + tl.program_id(2) * tl.num_programs(0) + tile, SPLIT_K):
            return
        sum_NM = sum_of_planes(partial_ptr + cell_NM, plane, SPLIT_K)
    store_rows(y_ptr + first_m.to(tl.int64) * N, sum_NM, bias_ptr, bias_ptr, bias_ptr,
               tile * BLOCK_N, num_rows - first_m, N, BIAS, False, BLOCK_N, BLOCK_M)  # fmt: skip


@triton.jit
def lifted(word_NK, x_K, power_N, place: tl.constexpr, BITS: tl.constexpr):
    """Return x times integer `place` on top of a power of two, and x times that power."""
    # Places of four bits go to bits 11, 15 and 19 in turn; those of eight to bit 15.
    AT: tl.constexpr = 11 + place % 3 * 4 if BITS == 4 else 15
    UP: tl.constexpr = AT - place * BITS
    moved_NK = word_NK << UP if UP > 0 else word_NK >> -UP
    bits_NK = moved_NK & (((1 << BITS) - 1) << AT) | power_N[:, None]
    product_NK = bits_NK.to(tl.float32, bitcast=True) * (x_K * (1.0 / (1 << AT)))[None, :]
    return product_NK, x_K * (1 << 23 - AT)


@triton.jit
def numbers(x_ptrs_K, column_K, K: tl.constexpr, WHOLE: tl.constexpr):
    """Load a span of x; what is behind its end is zero."""
    if WHOLE:
        return tl.load(x_ptrs_K).to(tl.float32)
    else:
        return tl.load(x_ptrs_K, mask=column_K < K, other=0.0).to(tl.float32)


@triton.jit
def total_of(partial_ptrs_N, there_N, N, BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr):
    """Add up the partial sums of all programs of a tile."""
    sum_N = tl.zeros([BLOCK_N], tl.float32)
    for other in tl.static_range(SPLIT_K):
        cells_N = partial_ptrs_N + other * N
        sum_N += tl.load(cells_N, mask=there_N, other=0.0, cache_modifier=".cg")
    return sum_N


@triton.jit
def alone(
    y_ptr, x_ptr, word_ptr, scale_ptr, zero_ptr, bias_ptr, power_ptr, partial_ptr, counter_ptr, N,
    K: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr,
    ZEROS: tl.constexpr, FRACTION: tl.constexpr, BIAS: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr, UNROLL: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One row of x of 16 bits, without matrix units. Grid: (N / BLOCK_N, SPLIT_K).

    An integer in the upper bits of a mantissa is that integer on top of a small power of two. The
    powers and the zero point meet only the sum of a group's x, once for a group.

    Args:
        partial_ptr: [SPLIT_K, N] float32, scratch.
        counter_ptr: [N / BLOCK_N] int32, zero before and after.
    """
    PLACES: tl.constexpr = 32 // BITS
    CHUNK: tl.constexpr = PLACES * SPAN
    CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    STEPS: tl.constexpr = (CHUNKS + SPLIT_K - 1) // SPLIT_K
    tile, part = tl.program_id(0), tl.program_id(1)
    n_N, k_K = tile * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, SPAN)
    first, row_N = part * STEPS, tl.minimum(n_N, N - 1)
    begin = tl.minimum(first, CHUNKS - 1)
    word_ptrs_NK = word_ptr + (begin.to(tl.int64) * N + row_N)[:, None] * SPAN + k_K[None, :]
    word_NK = tl.load(word_ptrs_NK, eviction_policy="evict_first")
    power_N = tl.load(power_ptr + n_N * 0)
    sum_NK = tl.zeros([BLOCK_N, SPAN], tl.float32)
    zero_N = tl.full([BLOCK_N], HALF, tl.float32)
    wait(CHAINED)
    for step in tl.range(0, STEPS, loop_unroll_factor=UNROLL):
        # The next words are on their way meanwhile; behind the last chunk, the last again.
        ahead = tl.minimum(first + step + 1, CHUNKS - 1) - begin
        next_NK = tl.load(word_ptrs_NK + ahead * (N * SPAN), eviction_policy="evict_first")
        inner_NK = tl.zeros([BLOCK_N, SPAN], tl.float32)
        power_K, total_K = twice(tl.zeros([SPAN], tl.float32))
        for place in tl.static_range(PLACES):
            column = (first + step) * CHUNK + place * SPAN
            x_K = numbers(x_ptr + column + k_K, column + k_K, K, K == STEPS * CHUNK * SPLIT_K)
            product_NK, above_K = lifted(word_NK, x_K, power_N, place, BITS)
            inner_NK += product_NK
            power_K += above_K
            total_K += x_K
            if (place + 1) * SPAN % GROUP == 0 or place == PLACES - 1:
                at = group_at(column, K, GROUP, N)
                if ZEROS:
                    zero_N = tl.load(zero_ptr + at + row_N).to(tl.float32)
                inner_NK -= power_K[None, :] + zero_N[:, None] * total_K[None, :]
                sum_NK += tl.load(scale_ptr + at + row_N).to(tl.float32)[:, None] * inner_NK
                inner_NK = tl.zeros([BLOCK_N, SPAN], tl.float32)
                power_K, total_K = twice(tl.zeros([SPAN], tl.float32))
        word_NK = next_NK
    sum_N, there_N = tl.sum(sum_NK, 1), n_N < N
    if SPLIT_K > 1:
        tl.store(partial_ptr + part * N + n_N, sum_N, mask=there_N)
        if not last_to_arrive(counter_ptr + tile, SPLIT_K):
            return
        sum_N = total_of(partial_ptr + n_N, there_N, N, BLOCK_N, SPLIT_K)
    if BIAS:
        sum_N += tl.load(bias_ptr + n_N, mask=there_N, other=0.0).to(tl.float32)
    tl.store(y_ptr + n_N, sum_N.to(y_ptr.dtype.element_ty), mask=there_N)


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
