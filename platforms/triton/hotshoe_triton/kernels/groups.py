"""Products with packed integers of four or eight bits, and their way back to plain numbers.

A word of 16 bits holds integers of one row that lie SPAN columns apart: the lowest bits are column
c of a chunk, the next ones column c + SPAN, and so on. So a tile of words reaches the matrix units'
registers as it is, and becomes tiles of neighboring columns there, one for each place in a word.
Groups narrower than a span divide it into strips, whose numbers are scaled before they are
multiplied or, with scales of 8 bits, are multiplied strip by strip.

Shape suffixes: N output features, K columns of a strip, M rows of x.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import ask_for, wait
from hotshoe_triton.kernels.linear import last_to_arrive, store_rows, sum_of_planes

#: Four bits of two words side by side become two numbers of 16 bits. Integers go into the mantissas
#: of 128 or 1024, and that power leaves with the zero point; 4-bit floats keep sign, exponent and
#: mantissa, and a power makes up for the exponent's range.
LOWEST = "{ .reg .b32 pair, sign, by; shr.u32 pair, $1, AT; "
INTEGERS = LOWEST + (
    "mov.b32 by, ONE; lop3.b32 pair, pair, 0x000f000f, BASE, 0xea; fma.rn.KIND pair, pair, by, $2; "
)
FLOATS = LOWEST + (
    "shl.b32 sign, pair, 12; and.b32 sign, sign, 0x80008000; shl.b32 pair, pair, UP; lop3.b32 "
    "pair, pair, MASK, sign, 0xea; mov.b32 by, FACTOR; mov.b32 sign, 0x80008000; "
    "fma.rn.KIND $0, pair, by, sign; }"
)
#: What differs between types of 16 bits.
BFLOAT = {"KIND": "bf16x2", "ONE": "0x3f803f80", "BASE": "0x43004300"} | {
    "UP": "6", "MASK": "0x01c001c0", "POWER": "0x7f007f00",
}  # fmt: skip
HALF = {"KIND": "f16x2", "ONE": "0x3c003c00", "BASE": "0x64006400"} | {
    "UP": "9", "MASK": "0x0e000e00", "POWER": "0x78007800",
}  # fmt: skip


@triton.constexpr_function
def pairs_at(DTYPE, bit, ZEROS):
    """Return the instructions that make numbers of the four bits from `bit` on.

    Operands are words, and with zero points what is added to numbers; if zero points are "apart",
    one more, by which integers become fractions. With "bytes" it is by what numbers are multiplied.
    """
    factor = "$2" if ZEROS == "bytes" else "POWER"
    if ZEROS == "none" or ZEROS == "bytes":
        text = FLOATS
    elif ZEROS == "apart":
        text = INTEGERS + "fma.rn.KIND $0, pair, by, $3; }"
    else:
        text = INTEGERS + "mov.b32 $0, pair; }"
    text = text.replace("FACTOR", factor)
    for name, value in (BFLOAT if tl.bfloat16 == DTYPE else HALF).items():
        text = text.replace(name, value)
    return text.replace("AT", str(bit))


@triton.jit
def doubled(code):
    """Return twice the numbers of 4-bit floats, as float32."""
    size = code & 7
    whole = tl.where(size < 4, size, (4 | (size & 1) << 1) << ((size >> 1) & 1)).to(tl.float32)
    return tl.where((code & 8) != 0, -whole, whole)


@triton.constexpr_function
def power_of(DTYPE):
    """Return what scales of 8 bits are multiplied by before numbers are multiplied by them."""
    return 2.0**126 if tl.bfloat16 == DTYPE else 2.0**14


@triton.constexpr_function
def strip_of(SPAN, GROUP, ZEROS):
    """Return the neighboring columns of a row that are multiplied at once."""
    return min(SPAN, GROUP) if ZEROS == "bytes" else SPAN


@triton.constexpr_function
def share_of(GROUP, ZEROS):
    """Return the columns whose scales have one place in a row of scales."""
    return 4 * GROUP if ZEROS == "bytes" else GROUP


@triton.jit
def byte_scale(bits, place: tl.constexpr):
    """Return byte `place` of words of 32 bits, an 8-bit float without a sign, times 2^-8."""
    half = ((bits >> 8 * place) & 127) << 7
    return half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def numbers(
    word, zero, place: tl.constexpr, BITS: tl.constexpr, ZEROS: tl.constexpr,
    PAIRED: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Return number `place` of each word less its zero point, as DTYPE.

    Args:
        word: Of any shape, its last dimension K. zero: float32 of that shape, its last one 1; with
            "bytes" the scales of the group, int32, by which numbers are multiplied, and by 2^-8.
            No digit is lost: the number has two, and the scale four.
        ZEROS: See `scale_and_zero`.
        PAIRED: By instructions of NVIDIA's that make two numbers of 16 bits at once.
    """
    if PAIRED:
        BASE: tl.constexpr = 128.0 if tl.bfloat16 == DTYPE else 1024.0
        how: tl.constexpr = pairs_at(DTYPE, place * BITS, ZEROS)
        if ZEROS == "none":
            bits = tl.inline_asm_elementwise(how, "=r,r", [word], tl.int16, is_pure=True, pack=2)
        elif ZEROS == "bytes":
            operands = [word, (byte_scale(zero, place) * power_of(DTYPE)).to(DTYPE)]
            bits = tl.inline_asm_elementwise(
                how, "=r,r,r", operands, tl.int16, is_pure=True, pack=2
            )
        elif ZEROS == "apart":
            whole = tl.clamp(zero, 0.0, 15.0).to(tl.int32).to(tl.float32)
            operands = [word, (-BASE - whole).to(DTYPE), (whole - zero).to(DTYPE)]
            bits = tl.inline_asm_elementwise(
                how, "=r,r,r,r", operands, tl.int16, is_pure=True, pack=2
            )
        else:
            operands = [word, (-BASE - zero).to(DTYPE)]
            bits = tl.inline_asm_elementwise(
                how, "=r,r,r", operands, tl.int16, is_pure=True, pack=2
            )
        w = bits.to(DTYPE, bitcast=True)
    else:
        code = (word.to(tl.int32) >> place * BITS) & ((1 << BITS) - 1)
        # Bits that are put into the mantissa of 2^23 add themselves to it.
        value = (code | 0x4B000000).to(tl.float32, bitcast=True)
        if ZEROS == "none":
            w = doubled(code).to(DTYPE)
        elif ZEROS == "bytes":
            w = (doubled(code) * (byte_scale(zero, place) * 0.5)).to(DTYPE)
        elif ZEROS == "apart":
            w = (value - 8388608.0 - zero).to(DTYPE)
        else:
            w = (value - (zero + 8388608.0)).to(DTYPE)
    return w


@triton.jit
def scale_and_zero(scale_ptrs_N, zero_ptrs_N, BITS: tl.constexpr, ZEROS: tl.constexpr):
    """Return scales and zero points of a group of each row, as float32.

    Args:
        ZEROS: "half" of the integers' range; "inside": in the lowest five bits of the scales;
            "apart": as float32, which may be no integers; "none", of 4-bit floats. "bytes" is for
            4-bit floats with scales of 8 bits, which `numbers` takes as they are: the scales of
            a strip of all places are the bytes of an int32, the lowest one first.
    """
    scale_N = tl.load(scale_ptrs_N)
    if ZEROS == "apart":
        zero_N = tl.load(zero_ptrs_N)
    elif ZEROS == "inside":
        bits_N = scale_N.to(tl.int32, bitcast=True)
        zero_N = (bits_N & 31).to(tl.float32)
        scale_N = (bits_N & -32).to(tl.float32, bitcast=True)
    else:
        zero_N = tl.zeros_like(scale_N) + (1 << BITS - 1)
    return scale_N, zero_N


@triton.constexpr_function
def spread(shape, GROUP):
    """Return the shape of strips of columns, of which `shape` has one number each."""
    return [*shape, GROUP]


@triton.jit
def scaled(
    word, at, scale_ptr, zero_ptr, columns, N, K, place: tl.constexpr, GROUP: tl.constexpr,
    BITS: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    """Return number `place` of each word times its scale, as float32, where spans have strips.

    Args:
        word: [..., SPAN]. at: [..., 1], where the row's scales of the first group are.
        columns: The first one of each strip, for dimensions as `at` has.
    """
    at = at + tl.minimum(columns, K - 1) // GROUP * N
    scale, zero = scale_and_zero(scale_ptr + at, zero_ptr + at, BITS, ZEROS)
    SPREAD: tl.constexpr = spread(scale.shape, GROUP)
    scale = tl.broadcast_to(scale.expand_dims(-1), SPREAD).reshape(word.shape)
    zero = tl.broadcast_to(zero.expand_dims(-1), SPREAD).reshape(word.shape)
    return numbers(word, zero, place, BITS, ZEROS, False, tl.float32) * scale


@triton.jit
def ask_for_scales(
    scale_ptr, column, N, K, SPAN: tl.constexpr, PLACES: tl.constexpr, SHARE: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Ask for scales of chunks that begin at columns; SHARE: see `share_of`."""
    for place in tl.static_range(PLACES):
        if place * SPAN % SHARE == 0:
            at = tl.minimum(column + place * SPAN, K - 1) // SHARE * N
            ask_for(scale_ptr + at, CHAINED)


@triton.jit
def plus_chunks(
    sum_LNM, word_ptr, x_ptrs_KM, scale_ptr, zero_ptr, chunk_L, chunks, row_N, there_M, N, K,
    GROUP: tl.constexpr, BITS: tl.constexpr, ZEROS: tl.constexpr, SPAN: tl.constexpr,
    PAIRED: tl.constexpr,
):  # fmt: skip
    """Return sums of lanes with those of a chunk of each, strip by strip."""
    PLACES: tl.constexpr = 16 // BITS
    STRIP: tl.constexpr = strip_of(SPAN, GROUP, ZEROS)
    k_K = tl.arange(0, STRIP)
    # Behind the last chunk x is zero, whatever the words are.
    held_L = tl.minimum(chunk_L, chunks - 1)
    at_LN = held_L.to(tl.int64)[:, None] * N + row_N[None, :]
    word_ptrs_LNK = word_ptr + at_LN[:, :, None] * SPAN + k_K[None, None, :]
    for strip in tl.static_range(0, SPAN, STRIP):
        word_LNK = tl.load(word_ptrs_LNK + strip, eviction_policy="evict_first")
        group_LNM = tl.zeros_like(sum_LNM)
        if ZEROS == "bytes":
            at_LN = (held_L * (SPAN // STRIP) + strip // STRIP)[:, None] * N + row_N[None, :]
            zero_LN = tl.load(scale_ptr + at_LN)
        for place in tl.static_range(PLACES):
            column_L = chunk_L * (PLACES * SPAN) + place * SPAN + strip
            if place * SPAN % GROUP == 0 and GROUP >= SPAN:
                at_LN = (tl.minimum(column_L, K - 1) // GROUP * N)[:, None] + row_N[None, :]
                scale_LN, zero_LN = scale_and_zero(scale_ptr + at_LN, zero_ptr + at_LN, BITS, ZEROS)
            there_LK = column_L[:, None] + k_K[None, :] < K
            there_LKM = there_LK[:, :, None] & there_M[None, None, :]
            x_LKM = tl.load(x_ptrs_KM[None] + column_L[:, None, None], mask=there_LKM, other=0.0)
            if GROUP < SPAN and ZEROS != "bytes":
                columns_LNS = (
                    column_L[:, None, None] + tl.arange(0, SPAN // GROUP)[None, None] * GROUP
                )
                w_LNK = scaled(
                    word_LNK, row_N[None, :, None], scale_ptr, zero_ptr, columns_LNS, N, K, place,
                    GROUP, BITS, ZEROS,
                ).to(x_LKM.dtype)  # fmt: skip
            else:
                w_LNK = numbers(
                    word_LNK, zero_LN[:, :, None], place, BITS, ZEROS, PAIRED, x_LKM.dtype
                )
            if GROUP < SPAN:
                sum_LNM = tl.dot(w_LNK, x_LKM, sum_LNM, input_precision="ieee")
            else:
                group_LNM = tl.dot(w_LNK, x_LKM, group_LNM, input_precision="ieee")
                if (place + 1) * SPAN % GROUP == 0 or place == PLACES - 1:
                    sum_LNM += group_LNM * scale_LN[:, :, None]
                    group_LNM = tl.zeros_like(sum_LNM)
    return sum_LNM


@triton.jit(do_not_specialize=["num_rows"])
def by_lanes(
    y_ptr, x_ptr, word_ptr, scale_ptr, zero_ptr, bias_ptr, partial_ptr, counter_ptr,
    num_rows, N, K, x_stride, GROUP: tl.constexpr, BITS: tl.constexpr, ZEROS: tl.constexpr,
    BIAS: tl.constexpr, SPAN: tl.constexpr, PAIRED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, LANES: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """As `grouped`, for so few rows that tiles have to be low to occupy the device.

    Lanes of a program (one or two for each warp) take turns at the chunks of a row, as do programs
    of a tile. What is asked for first is on its way before x is there.
    """
    PLACES: tl.constexpr = 16 // BITS
    CHUNK: tl.constexpr = PLACES * SPAN
    SHARE: tl.constexpr = share_of(GROUP, ZEROS)
    tile, part, chunks = tl.program_id(0), tl.program_id(1), tl.cdiv(K, CHUNK)
    n_N, m_M = tile * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)
    row_N, k_K = tl.minimum(n_N, N - 1), tl.arange(0, strip_of(SPAN, GROUP, ZEROS))
    x_ptrs_KM = x_ptr + m_M.to(tl.int64)[None, :] * x_stride + k_K[:, None]
    sum_LNM = tl.zeros([LANES, BLOCK_N, BLOCK_M], tl.float32)
    lane_L = part * LANES + tl.arange(0, LANES)
    for step in tl.static_range(2):
        chunk_L = tl.minimum(lane_L + step * SPLIT_K * LANES, chunks - 1)
        ask_for(word_ptr + (chunk_L.to(tl.int64)[:, None] * N + row_N[None, :]) * SPAN, CHAINED)
        ask_for_scales(scale_ptr + tile * BLOCK_N, chunk_L * CHUNK, N, K, SPAN, PLACES, SHARE,
                       CHAINED)  # fmt: skip
    wait(CHAINED)
    for step in tl.range(tl.cdiv(chunks, LANES * SPLIT_K), num_stages=STAGES):
        chunk_L = lane_L + step * SPLIT_K * LANES
        sum_LNM = plus_chunks(
            sum_LNM, word_ptr, x_ptrs_KM, scale_ptr, zero_ptr, chunk_L, chunks, row_N,
            m_M < num_rows, N, K, GROUP, BITS, ZEROS, SPAN, PAIRED,
        )  # fmt: skip
    sum_NM = tl.sum(sum_LNM, 0)
    if ZEROS == "bytes":
        sum_NM *= tl.load(zero_ptr + row_N)[:, None]
    if SPLIT_K > 1:
        cell_NM = n_N[:, None] * BLOCK_M + m_M[None, :]
        plane = tl.num_programs(0).to(tl.int64) * (BLOCK_N * BLOCK_M)
        tl.store(partial_ptr + part * plane + cell_NM, sum_NM)
        if not last_to_arrive(counter_ptr + tile, SPLIT_K):
            return
        sum_NM = sum_of_planes(partial_ptr + cell_NM, plane, SPLIT_K)
    store_rows(y_ptr, sum_NM, bias_ptr, bias_ptr, bias_ptr, tile * BLOCK_N, num_rows, N,
               BIAS, False, BLOCK_N, BLOCK_M)  # fmt: skip


@triton.jit
def plus_chunk(
    sum_NM, word_ptrs_NK, x_ptrs_KM, scale_ptr, zero_ptr, chunk, row_N, there_M, N, K,
    GROUP: tl.constexpr, BITS: tl.constexpr, ZEROS: tl.constexpr, SPAN: tl.constexpr,
    PAIRED: tl.constexpr,
):  # fmt: skip
    """Return sums with those of a chunk, strip by strip."""
    PLACES: tl.constexpr = 16 // BITS
    STRIP: tl.constexpr = strip_of(SPAN, GROUP, ZEROS)
    k_K = tl.arange(0, STRIP)
    for strip in tl.static_range(0, SPAN, STRIP):
        word_NK = tl.load(word_ptrs_NK + strip, eviction_policy="evict_first")
        group_NM = tl.zeros_like(sum_NM)
        if ZEROS == "bytes":
            zero_N = tl.load(scale_ptr + (chunk * (SPAN // STRIP) + strip // STRIP) * N + row_N)
        for place in tl.static_range(PLACES):
            column = chunk * (PLACES * SPAN) + place * SPAN + strip
            if place * SPAN % GROUP == 0 and GROUP >= SPAN:
                at_N = tl.minimum(column, K - 1) // GROUP * N + row_N
                scale_N, zero_N = scale_and_zero(scale_ptr + at_N, zero_ptr + at_N, BITS, ZEROS)
            there_KM = (column + k_K < K)[:, None] & there_M[None, :]
            x_KM = tl.load(x_ptrs_KM + column, mask=there_KM, other=0.0)
            if GROUP < SPAN and ZEROS != "bytes":
                columns_NS = column + tl.arange(0, SPAN // GROUP)[None, :] * GROUP
                w_NK = scaled(
                    word_NK, row_N[:, None], scale_ptr, zero_ptr, columns_NS, N, K, place, GROUP,
                    BITS, ZEROS,
                ).to(x_KM.dtype)  # fmt: skip
            else:
                w_NK = numbers(word_NK, zero_N[:, None], place, BITS, ZEROS, PAIRED, x_KM.dtype)
            if GROUP < SPAN:
                sum_NM = tl.dot(w_NK, x_KM, sum_NM, input_precision="ieee")
            else:
                group_NM = tl.dot(w_NK, x_KM, group_NM, input_precision="ieee")
                if (place + 1) * SPAN % GROUP == 0 or place == PLACES - 1:
                    sum_NM += group_NM * scale_N[:, None]
                    group_NM = tl.zeros_like(sum_NM)
    return sum_NM


@triton.jit(do_not_specialize=["num_rows"])
def grouped(
    y_ptr, x_ptr, word_ptr, scale_ptr, zero_ptr, bias_ptr, partial_ptr, counter_ptr,
    num_rows, N, K, x_stride, GROUP: tl.constexpr, BITS: tl.constexpr, ZEROS: tl.constexpr,
    BIAS: tl.constexpr, SPAN: tl.constexpr, PAIRED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply up to BLOCK_M rows of x by packed integers. Grid: (N / BLOCK_N, SPLIT_K).

    Sums of a group are scaled in float32. A chunk is whole groups, or a group is whole chunks.

    Args:
        word_ptr: [chunks, N, SPAN] int16. scale_ptr, zero_ptr: [groups, N] float32; with "bytes"
            [chunks * strips, N] int32, and [N] float32, which numbers of a row are multiplied by.
        partial_ptr: [SPLIT_K, N padded, BLOCK_M] float32, scratch.
        counter_ptr: [N / BLOCK_N] int32, zero before and after.
    """
    PLACES: tl.constexpr = 16 // BITS
    CHUNK: tl.constexpr = PLACES * SPAN
    chunks = tl.cdiv(K, CHUNK)
    tile, part, steps = tl.program_id(0), tl.program_id(1), tl.cdiv(chunks, SPLIT_K)
    n_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m_M, k_K = tl.arange(0, BLOCK_M), tl.arange(0, strip_of(SPAN, GROUP, ZEROS))
    first, row_N = part * steps, tl.minimum(n_N, N - 1)
    word_ptrs_NK = word_ptr + (first.to(tl.int64) * N + row_N)[:, None] * SPAN + k_K[None, :]
    x_ptrs_KM = x_ptr + m_M.to(tl.int64)[None, :] * x_stride + k_K[:, None]
    sum_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    wait(CHAINED)
    for step in tl.range(tl.minimum(steps, chunks - first), num_stages=STAGES):
        sum_NM = plus_chunk(
            sum_NM, word_ptrs_NK, x_ptrs_KM, scale_ptr, zero_ptr, first + step, row_N,
            m_M < num_rows, N, K, GROUP, BITS, ZEROS, SPAN, PAIRED,
        )  # fmt: skip
        word_ptrs_NK += N * SPAN
    if ZEROS == "bytes":
        sum_NM *= tl.load(zero_ptr + row_N)[:, None]
    if SPLIT_K > 1:
        cell_NM = n_N[:, None] * BLOCK_M + m_M[None, :]
        plane = tl.num_programs(0).to(tl.int64) * (BLOCK_N * BLOCK_M)
        tl.store(partial_ptr + part * plane + cell_NM, sum_NM)
        if not last_to_arrive(counter_ptr + tile, SPLIT_K):
            return
        sum_NM = sum_of_planes(partial_ptr + cell_NM, plane, SPLIT_K)
    store_rows(y_ptr, sum_NM, bias_ptr, bias_ptr, bias_ptr, tile * BLOCK_N, num_rows, N,
               BIAS, False, BLOCK_N, BLOCK_M)  # fmt: skip


@triton.jit
def plain(
    out_ptr, word_ptr, scale_ptr, zero_ptr, N, K, GROUP: tl.constexpr, BITS: tl.constexpr,
    ZEROS: tl.constexpr, SPAN: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write the weight [N, K] in the type of out. Grid: (N / BLOCK_N, chunks)."""
    PLACES: tl.constexpr = 16 // BITS
    STRIP: tl.constexpr = strip_of(SPAN, GROUP, ZEROS)
    n_N, k_K = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, STRIP)
    row_N, chunk = tl.minimum(n_N, N - 1), tl.program_id(1)
    word_ptrs_NK = word_ptr + (chunk.to(tl.int64) * N + row_N)[:, None] * SPAN + k_K[None, :]
    if ZEROS == "bytes":
        scale_N = tl.load(zero_ptr + row_N)
    for strip in tl.static_range(0, SPAN, STRIP):
        word_NK = tl.load(word_ptrs_NK + strip)
        if ZEROS == "bytes":
            at = chunk * (SPAN // STRIP) + strip // STRIP
            zero_N = tl.load(scale_ptr + at * N + row_N)
        for place in tl.static_range(PLACES):
            column = chunk * (PLACES * SPAN) + place * SPAN + strip
            if place * SPAN % GROUP == 0 and GROUP >= SPAN:
                at_N = tl.minimum(column, K - 1) // GROUP * N + row_N
                scale_N, zero_N = scale_and_zero(scale_ptr + at_N, zero_ptr + at_N, BITS, ZEROS)
            if GROUP < SPAN and ZEROS != "bytes":
                columns_NS = column + tl.arange(0, SPAN // GROUP)[None, :] * GROUP
                w_NK = scaled(
                    word_NK, row_N[:, None], scale_ptr, zero_ptr, columns_NS, N, K, place, GROUP,
                    BITS, ZEROS,
                )  # fmt: skip
            else:
                w_NK = numbers(word_NK, zero_N[:, None], place, BITS, ZEROS, False, tl.float32)
                w_NK *= scale_N[:, None]
            out_ptrs_NK = out_ptr + n_N.to(tl.int64)[:, None] * K + (column + k_K)[None, :]
            there_NK = (n_N < N)[:, None] & (column + k_K < K)[None, :]
            tl.store(out_ptrs_NK, w_NK.to(out_ptr.dtype.element_ty), mask=there_NK)
