"""Products of one row with packed integers of four bits, by products of integers, for sm_90 alone.

x becomes integers of two digits of eight bits, with a factor for each group of columns. So weights
stay integers, and bytes of eight of them take a third of the instructions that numbers take.
The fewest columns that a matrix unit multiplies are eight. They hold the digits of x in four parts
of a row, and rows of a tile hold weights in these four parts, side by side. Each part is multiplied
by all digits, and its own ones count. So a program has whole rows, and sums meet inside it.

One warp asks for tiles. Words and scales lie as `hotshoe_triton.groups` packs them.

Shape suffixes: N rows of a tile, K columns of a group, G groups, M digits of all parts, P parts.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from hotshoe_cuda.kernels.streamed import barrier, wait

#: Columns of a group, groups of a chunk of words, and parts of a row.
GROUP = gl.constexpr(128)
PAIR = gl.constexpr(2)
PARTS = gl.constexpr(4)
#: Columns that a step multiplies: a chunk of each part.
STEP = gl.constexpr(1024)
#: Numbers of x that a warp makes digits of at a time.
PIECE = gl.constexpr(1024)
#: Bytes of 16 words become 32 integers of each group of a chunk. The first and the second byte of a
#: word belong to one group each, and its lower and upper four bits are 64 columns apart.
INTEGERS = gl.constexpr(
    "{ .reg .b32 a, b, c, d; "
    "prmt.b32 a, $8, $10, 0x6420; prmt.b32 b, $9, $11, 0x6420; "
    "prmt.b32 c, $8, $10, 0x7531; prmt.b32 d, $9, $11, 0x7531; "
    "and.b32 $0, a, 0x0f0f0f0f; and.b32 $1, b, 0x0f0f0f0f; "
    "and.b32 $4, c, 0x0f0f0f0f; and.b32 $5, d, 0x0f0f0f0f; "
    "shr.u32 a, a, 4; shr.u32 b, b, 4; shr.u32 c, c, 4; shr.u32 d, d, 4; "
    "and.b32 $2, a, 0x0f0f0f0f; and.b32 $3, b, 0x0f0f0f0f; "
    "and.b32 $6, c, 0x0f0f0f0f; and.b32 $7, d, 0x0f0f0f0f; }"
)


@gluon.jit
def of_groups(value_G, STEPS: gl.constexpr):
    """Return what groups have one of as [2 * STEPS, PARTS]: first ones of chunks, then second."""
    return value_G.reshape([STEPS, PARTS, PAIR]).permute((0, 2, 1)).reshape([STEPS * PAIR, PARTS])


@gluon.jit
def digits_of(
    x_ptr, K, first: gl.constexpr, digits, sums, factors, LENGTH: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Write numbers of x from `first` on as integers of 15 bits, in digits of 8.

    Digits of a group lie in the order in which `INTEGERS` puts weights. With them go their sums
    and factors by group. The factor of a group with a number that is not finite is no number.
    """
    HOLD: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [num_warps, 1], [1, 0])
    STEPS: gl.constexpr = LENGTH // STEP
    HALF: gl.constexpr = first // STEP * PAIR
    MAGIC: gl.constexpr = 12582912.0  # 1.5 * 2^23: its lowest bits take a whole number as it is
    g_G = first // GROUP + gl.arange(0, LENGTH // GROUP, gl.SliceLayout(1, HOLD))
    k_K = gl.arange(0, GROUP, gl.SliceLayout(0, HOLD))
    at_GK = g_G[:, None] * GROUP + k_K[None, :]
    x_GK = gl.load(x_ptr + at_GK, mask=(g_G * GROUP < K)[:, None], other=0.0).to(gl.float32)
    largest_G = gl.max(x_GK.to(gl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    power_G = gl.maximum(largest_G >> 23, 14)
    by_G = ((267 - power_G) << 23).to(gl.float32, bitcast=True)
    factor_G = gl.where(power_G == 255, 0x7FC00000, (power_G - 13) << 23)
    whole_GK = (x_GK * by_G[:, None] + MAGIC).to(gl.int32, bitcast=True)
    sum_G = gl.sum(whole_GK - 0x4B400000, 1)
    both = gl.join(whole_GK.to(gl.int8), ((whole_GK + 128) >> 8).to(gl.int8))
    both = both.reshape([STEPS, PARTS, PAIR, 2, 4, 2, 4, 2, 2])
    both = both.permute((0, 2, 1, 8, 4, 3, 6, 5, 7))
    ROWS: gl.constexpr = 2 * PARTS
    digits.slice(HALF * ROWS, STEPS * PAIR * ROWS).store(both.reshape([STEPS * PAIR * ROWS, GROUP]))
    sums.slice(HALF, STEPS * PAIR).store(of_groups(sum_G, STEPS))
    factors.slice(HALF, STEPS * PAIR).store(of_groups(factor_G.to(gl.float32, bitcast=True), STEPS))


@gluon.jit
def plus_group(sum_NP, product_NM, scales, sums, factors, ZEROS: gl.constexpr):
    """Return the sums with those of a group: its integers less zero points, scaled."""
    ALONG: gl.constexpr = gl.SliceLayout(1, sum_NP.type.layout)
    ACROSS: gl.constexpr = gl.SliceLayout(0, sum_NP.type.layout)
    low_NP, high_NP = product_NM.reshape([sum_NP.shape[0], PARTS, 2]).split()
    whole_NP = gl.convert_layout((high_NP << 8) + low_NP, sum_NP.type.layout, assert_trivial=True)
    scale_N, sum_P, factor_P = scales.load(ALONG), sums.load(ACROSS), factors.load(ACROSS)
    if ZEROS == "inside":
        bits_N = scale_N.to(gl.int32, bitcast=True)
        whole_NP -= (bits_N & 31)[:, None] * sum_P[None, :]
        scale_N = (bits_N & -32).to(gl.float32, bitcast=True)
    else:
        whole_NP -= (sum_P * 8)[None, :]
    return sum_NP + whole_NP.to(gl.float32) * factor_P[None, :] * scale_N[:, None]


@gluon.jit
def plus_chunks(
    sum_NP, words, scales, slot, digits, sums, factors, half, ZEROS: gl.constexpr,
    ACC: gl.constexpr,
):  # fmt: skip
    """Return the sums with those of a tile: the groups of a chunk of each part.

    Args:
        slot, half: Of the first group among scales, and among digits, sums and factors.
    """
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=ACC, k_width=4)
    first_NK, second_NK = gl.inline_asm_elementwise(
        INTEGERS, "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r", [words.load(LEFT)], (gl.int8, gl.int8),
        is_pure=True, pack=16,
    )  # fmt: skip
    ROWS: gl.constexpr = sum_NP.shape[0]
    zero_NM = gl.zeros([ROWS, 2 * PARTS], gl.int32, ACC)
    x_KM = digits.index(half).permute((1, 0))
    first = warpgroup_mma(first_NK, x_KM, zero_NM, use_acc=False, is_async=True)
    x_KM = digits.index(half + 1).permute((1, 0))
    second = warpgroup_mma(second_NK, x_KM, zero_NM, use_acc=False, is_async=True)
    done = warpgroup_mma_wait(num_outstanding=0, deps=(first, second))
    for i in gl.static_range(PAIR):
        sum_NP = plus_group(
            sum_NP, done[i], scales.index(slot + i), sums.index(half + i), factors.index(half + i),
            ZEROS,
        )  # fmt: skip
    return sum_NP


@gluon.jit
def bring(word_desc, scale_desc, tiles, steps, words, scales, full, free):
    """Ask for tiles of words and scales, as places in the ring become free."""
    STAGES: gl.constexpr = words.shape[0]
    BLOCK_N: gl.constexpr = words.shape[2]
    NBYTES: gl.constexpr = PARTS * BLOCK_N * (GROUP + 4 * PAIR)
    slot = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        n = tile * BLOCK_N
        for step in range(steps):
            bar, chunk = full.index(slot), step * PARTS
            mbarrier.wait(free.index(slot), phase)
            mbarrier.expect(bar, NBYTES)
            tma.async_copy_global_to_shared(word_desc, [chunk, n, 0], bar, words.index(slot))
            tma.async_copy_global_to_shared(scale_desc, [0, chunk, n], bar, scales.index(slot))
            slot += 1
            if slot == STAGES:
                slot = 0
                phase ^= 1


@gluon.jit
def multiply(
    y_ptr, x_ptr, bias_ptr, N, K, tiles, steps, words, scales, digits, sums, factors, full, free,
    ZEROS: gl.constexpr, BIAS: gl.constexpr, BLOCK_N: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Make digits of x, and multiply tiles as they come."""
    STAGES: gl.constexpr = words.shape[0]
    ROWS: gl.constexpr = PARTS * BLOCK_N
    HALVES: gl.constexpr = digits.shape[0] // (2 * PARTS)
    ACC: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, 2 * PARTS, 32]
    )
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    digit_tiles = digits._reinterpret(gl.int8, [HALVES, 2 * PARTS, GROUP], digits.layout)
    sum_tiles = sums._reinterpret(gl.int32, [HALVES, PARTS], PLAIN)
    factor_tiles = factors._reinterpret(gl.float32, [HALVES, PARTS], PLAIN)
    wait()
    PADDED: gl.constexpr = HALVES // PAIR * STEP
    LENGTH: gl.constexpr = min(PADDED, PIECE * num_warps)
    for piece in gl.static_range(PADDED // LENGTH):
        digits_of(x_ptr, K, piece * LENGTH, digits, sums, factors, LENGTH, num_warps)
    fence_async_shared()
    barrier()
    like_NM = gl.zeros([ROWS, 2 * PARTS], gl.int32, ACC)
    SUMS: gl.constexpr = like_NM.reshape([ROWS, PARTS, 2]).split()[0].type.layout
    part_N = gl.arange(0, ROWS, gl.SliceLayout(1, SUMS)) // BLOCK_N
    own_NP = part_N[:, None] == gl.arange(0, PARTS, gl.SliceLayout(0, SUMS))[None, :]
    OUT: gl.constexpr = gl.sum(part_N.reshape([PARTS, BLOCK_N]), 0).type.layout
    out_N = gl.arange(0, BLOCK_N, OUT)
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        n_N = tile * BLOCK_N + out_N
        bias_N = out_N
        if BIAS:
            bias_N = gl.load(bias_ptr + n_N, mask=n_N < N, other=0.0).to(gl.float32)
        sum_NP = gl.zeros([ROWS, PARTS], gl.float32, SUMS)
        for step in range(steps):
            mbarrier.wait(full.index(slot), phase)
            sum_NP = plus_chunks(
                sum_NP, words.index(slot), scales, slot * PAIR, digit_tiles, sum_tiles,
                factor_tiles, step * PAIR, ZEROS, ACC,
            )  # fmt: skip
            mbarrier.arrive(free.index(slot))
            slot += 1
            if slot == STAGES:
                slot = 0
                phase ^= 1
        sum_N = gl.sum(gl.where(own_NP, sum_NP, 0.0), 1)
        y_N = gl.sum(sum_N.reshape([PARTS, BLOCK_N]), 0)
        if BIAS:
            y_N += bias_N
        gl.store(y_ptr + n_N, y_N.to(y_ptr.dtype.element_ty), mask=n_N < N)


@gluon.jit
def one_row(
    y_ptr, x_ptr, word_desc, scale_desc, bias_ptr, N, K, tiles, steps,
    ZEROS: gl.constexpr, BIAS: gl.constexpr, PADDED: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """One row of x [K]. Grid: (programs,), which take turns at the tiles of y [N].

    Args:
        word_desc: Tiles [PARTS, BLOCK_N, 128] of words [chunks, N, 128] as bytes.
        scale_desc: Tiles [2, PARTS, BLOCK_N] of scales [2, chunks, N]; behind an end both are 0.
        tiles: N / BLOCK_N, rounded up. steps: K / STEP, rounded up.
        PADDED: K, rounded up to a power of two; at least STEP.
    """
    ROWS: gl.constexpr = PARTS * BLOCK_N
    HALVES: gl.constexpr = PADDED // STEP * PAIR
    TILES: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    BARS: gl.constexpr = mbarrier.MBarrierLayout()
    words = gl.allocate_shared_memory(gl.int8, [STAGES, PARTS, BLOCK_N, GROUP], word_desc.layout)
    word_tiles = words._reinterpret(gl.int8, [STAGES, ROWS, GROUP], TILES)
    scales = gl.allocate_shared_memory(
        gl.float32, [STAGES, PAIR, PARTS, BLOCK_N], scale_desc.layout
    )
    scale_tiles = scales._reinterpret(gl.float32, [STAGES * PAIR, ROWS], PLAIN)
    digits = gl.allocate_shared_memory(gl.int8, [HALVES * 2 * PARTS, GROUP], TILES)
    sums = gl.allocate_shared_memory(gl.int32, [HALVES, PARTS], TABLE)
    factors = gl.allocate_shared_memory(gl.float32, [HALVES, PARTS], TABLE)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARS)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARS)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
    fence_async_shared()
    barrier()
    gl.warp_specialize(
        [
            (multiply, (y_ptr, x_ptr, bias_ptr, N, K, tiles, steps, word_tiles, scale_tiles, digits,
                        sums, factors, full, free, ZEROS, BIAS, BLOCK_N, num_warps)),
            (bring, (word_desc, scale_desc, tiles, steps, words, scales, full, free)),
        ],
        [1],
        [24],
    )  # fmt: skip
