"""Products of few rows with packed numbers of four bits, for sm_90 alone.

As `streamed`, the copy engine fills a ring with tiles of the weight before the kernel in front has
ended. Words become numbers in registers, which warpgroups multiply by x in shared memory. How
words, scales and zero points lie, `hotshoe_triton.kernels.groups` says, which is the same product
for all architectures.

Shape suffixes: N output features, K columns of a span, M rows of x.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from hotshoe_cuda.kernels.streamed import barrier, last_to_arrive, store_rows, wait
from hotshoe_triton.kernels.groups import pairs_at, power_of

#: Numbers in a word.
PLACES = gl.constexpr(4)
#: Groups of a span whose scales have eight bits.
STRIPS = gl.constexpr(4)


@gluon.jit
def ask_words(desc, chunk, first_n, N, bar, tile, NBYTES: gl.constexpr, there):
    """Ask for a tile of words; NBYTES: of x's tiles, too, for which the same barrier waits."""
    mbarrier.expect(bar, NBYTES, pred=there)
    tma.async_copy_global_to_shared(desc, [chunk * N + first_n, 0], bar, tile, pred=there)


@gluon.jit
def of_places(ptrs_N, chunk, K, N, GROUP: gl.constexpr, SPAN: gl.constexpr):
    """Load what groups have one of, for each place of a chunk; behind the last, the last again."""
    at, last = chunk * PLACES * SPAN, K - 1
    first_N = gl.load(ptrs_N + gl.minimum(at, last) // GROUP * N)
    found = (first_N, first_N, first_N, first_N)
    if GROUP == SPAN:
        second_N = gl.load(ptrs_N + gl.minimum(at + SPAN, last) // GROUP * N)
        third_N = gl.load(ptrs_N + gl.minimum(at + 2 * SPAN, last) // GROUP * N)
        fourth_N = gl.load(ptrs_N + gl.minimum(at + 3 * SPAN, last) // GROUP * N)
        found = (first_N, second_N, third_N, fourth_N)
    elif GROUP == 2 * SPAN:
        third_N = gl.load(ptrs_N + gl.minimum(at + 2 * SPAN, last) // GROUP * N)
        found = (first_N, first_N, third_N, third_N)
    return found


@gluon.jit
def scales_and_zeros(
    ptrs_N, chunk, K, N, GROUP: gl.constexpr, ZEROS: gl.constexpr, SPAN: gl.constexpr
):
    """Return scales for each place of a chunk, and zero points that are apart from them.

    Scales of 8 bits come for each strip of the places, four in a word.
    """
    if ZEROS == "bytes":
        at = gl.minimum(chunk, (K - 1) // (PLACES * SPAN)) * STRIPS
        strip_ptrs_N = ptrs_N[0] + at * N
        first_N, second_N = gl.load(strip_ptrs_N), gl.load(strip_ptrs_N + N)
        third_N, fourth_N = gl.load(strip_ptrs_N + 2 * N), gl.load(strip_ptrs_N + 3 * N)
        scales = (first_N, second_N, third_N, fourth_N)
    else:
        scales = of_places(ptrs_N[0], chunk, K, N, GROUP, SPAN)
    zeros = scales
    if ZEROS == "apart":
        zeros = of_places(ptrs_N[1], chunk, K, N, GROUP, SPAN)
    return scales, zeros


@gluon.jit
def scaled_strip(word_NK, bits_N, place: gl.constexpr, DTYPE: gl.constexpr):
    """Return the bits of numbers `place` of a strip of words, times their scales and 2^-8."""
    half_N = (((bits_N >> 8 * place) & 127) << 7).to(gl.int16).to(gl.float16, bitcast=True)
    by_N = (half_N.to(gl.float32) * power_of(DTYPE)).to(DTYPE)
    by_NK = gl.convert_layout(by_N, gl.SliceLayout(1, word_NK.type.layout))[:, None]
    how: gl.constexpr = pairs_at(DTYPE, place * 4, "bytes")
    return gl.inline_asm_elementwise(
        how, "=r,r,r", [word_NK, by_NK], gl.int16, is_pure=True, pack=2
    )


@gluon.jit
def scaled_numbers(word_NK, bits, place: gl.constexpr, DTYPE: gl.constexpr):
    """Return numbers `place` of words, each strip times its scales and 2^-8.

    Strips are registers of the same threads, so nothing moves.
    """
    ROWS: gl.constexpr = word_NK.shape[0]
    strips = word_NK.reshape([ROWS, 2, 2, word_NK.shape[1] // STRIPS]).permute((0, 3, 1, 2))
    even, odd = strips.split()
    first, third = even.split()
    second, fourth = odd.split()
    even = gl.join(
        scaled_strip(first, bits[0], place, DTYPE), scaled_strip(third, bits[2], place, DTYPE)
    )
    odd = gl.join(
        scaled_strip(second, bits[1], place, DTYPE), scaled_strip(fourth, bits[3], place, DTYPE)
    )
    bits_NK = gl.join(even, odd).permute((0, 2, 3, 1)).reshape(word_NK.shape)
    bits_NK = gl.convert_layout(bits_NK, word_NK.type.layout, assert_trivial=True)
    return bits_NK.to(DTYPE, bitcast=True)


@gluon.jit
def numbers(
    word_NK, scale_N, zero_N, place: gl.constexpr, ZEROS: gl.constexpr, DTYPE: gl.constexpr
):
    """Return numbers `place` of words, less their zero points, and their scales."""
    BASE: gl.constexpr = 128.0 if gl.bfloat16 == DTYPE else 1024.0
    ROWS: gl.constexpr = gl.SliceLayout(1, word_NK.type.layout)
    how: gl.constexpr = pairs_at(DTYPE, place * 4, ZEROS)
    if ZEROS == "none":
        bits_NK = gl.inline_asm_elementwise(how, "=r,r", [word_NK], gl.int16, is_pure=True, pack=2)
        return bits_NK.to(DTYPE, bitcast=True), scale_N
    if ZEROS == "inside":
        bits_N = scale_N.to(gl.int32, bitcast=True)
        whole_N = (bits_N & 31).to(gl.float32)
        scale_N = (bits_N & -32).to(gl.float32, bitcast=True)
    elif ZEROS == "apart":
        whole_N = gl.minimum(gl.maximum(zero_N, 0.0), 15.0).to(gl.int32).to(gl.float32)
    else:
        whole_N = scale_N * 0.0 + 8.0
    minus_NK = gl.convert_layout((-BASE - whole_N).to(DTYPE), ROWS)[:, None]
    if ZEROS == "apart":
        rest_NK = gl.convert_layout((whole_N - zero_N).to(DTYPE), ROWS)[:, None]
        operands = [word_NK, minus_NK, rest_NK]
        bits_NK = gl.inline_asm_elementwise(
            how, "=r,r,r,r", operands, gl.int16, is_pure=True, pack=2
        )
    else:
        operands = [word_NK, minus_NK]
        bits_NK = gl.inline_asm_elementwise(how, "=r,r,r", operands, gl.int16, is_pure=True, pack=2)
    return bits_NK.to(DTYPE, bitcast=True), scale_N


@gluon.jit
def plus_chunk(
    sum_NM, word_tile, x_tile, held, GROUP: gl.constexpr, ZEROS: gl.constexpr,
    DTYPE: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """Return the sums with those of a chunk, each group's scaled.

    Numbers of every other place are made while warpgroups multiply those before.
    """
    SPAN: gl.constexpr = word_tile.shape[1]
    word_NK, scales, zeros = word_tile.load(LEFT), held[0], held[1]
    group_NM = sum_NM
    for place in gl.static_range(0, PLACES, 2):
        w_NK, scale_N = numbers(word_NK, scales[place], zeros[place], place, ZEROS, DTYPE)
        x_KM = x_tile.slice(place * SPAN, SPAN, dim=1).permute((1, 0))
        group = warpgroup_mma(
            w_NK, x_KM, group_NM, use_acc=place * SPAN % GROUP != 0, is_async=True
        )
        next_NK, next_scale_N = numbers(
            word_NK, scales[place + 1], zeros[place + 1], place + 1, ZEROS, DTYPE
        )
        x_KM = x_tile.slice((place + 1) * SPAN, SPAN, dim=1).permute((1, 0))
        if GROUP == SPAN:
            other = warpgroup_mma(next_NK, x_KM, sum_NM, use_acc=False, is_async=True)
            done = warpgroup_mma_wait(num_outstanding=0, deps=(group, other, w_NK, next_NK))
            sum_NM += done[0] * scale_N[:, None] + done[1] * next_scale_N[:, None]
        else:
            group = warpgroup_mma(next_NK, x_KM, group, is_async=True)
            done = warpgroup_mma_wait(num_outstanding=0, deps=(group, w_NK, next_NK))
            group_NM = done[0]
            if (place + 2) * SPAN % GROUP == 0 or place + 2 == PLACES:
                sum_NM += group_NM * scale_N[:, None]
    return sum_NM


@gluon.jit
def plus_scaled_chunk(sum_NM, word_tile, x_tile, bits, DTYPE: gl.constexpr, LEFT: gl.constexpr):
    """Return the sums with those of a chunk whose scales go with its numbers."""
    SPAN: gl.constexpr = word_tile.shape[1]
    word_NK = word_tile.load(LEFT)
    for place in gl.static_range(0, PLACES, 2):
        w_NK = scaled_numbers(word_NK, bits, place, DTYPE)
        x_KM = x_tile.slice(place * SPAN, SPAN, dim=1).permute((1, 0))
        some = warpgroup_mma(w_NK, x_KM, sum_NM, is_async=True)
        next_NK = scaled_numbers(word_NK, bits, place + 1, DTYPE)
        x_KM = x_tile.slice((place + 1) * SPAN, SPAN, dim=1).permute((1, 0))
        both = warpgroup_mma(next_NK, x_KM, some, is_async=True)
        done = warpgroup_mma_wait(num_outstanding=0, deps=(both, w_NK, next_NK))
        sum_NM = done[0]
    return sum_NM


@gluon.jit
def multiply(
    sum_NM, x_desc, word_desc, ptrs_N, held, first, steps, first_n, N, K, words, xs, full,
    GROUP: gl.constexpr, ZEROS: gl.constexpr, NBYTES: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """Return the sums of all steps; each tile is replaced by the one that is a ring behind it.

    Args:
        ptrs_N: To scales and zero points of the rows, or, with "bytes", to what rows are multiplied
            by. held: Those of the first chunk.
    """
    STAGES: gl.constexpr = words.shape[0]
    SPAN: gl.constexpr = words.shape[2]
    slot = 0
    phase = 0
    for step in range(steps):
        bar, word_tile, x_tile = full.index(slot), words.index(slot), xs.index(slot)
        ahead = scales_and_zeros(ptrs_N, first + step + 1, K, N, GROUP, ZEROS, SPAN)
        mbarrier.wait(bar, phase)
        if ZEROS == "bytes":
            sum_NM = plus_scaled_chunk(sum_NM, word_tile, x_tile, held[0], x_desc.dtype, LEFT)
        else:
            sum_NM = plus_chunk(sum_NM, word_tile, x_tile, held, GROUP, ZEROS, x_desc.dtype, LEFT)
        held = ahead
        barrier()  # every warp has read the tiles
        there, chunk = step + STAGES < steps, first + step + STAGES
        ask_words(word_desc, chunk, first_n, N, bar, word_tile, NBYTES, there)
        tma.async_copy_global_to_shared(x_desc, [0, chunk * PLACES * SPAN], bar, x_tile, pred=there)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase ^= 1
    if ZEROS == "bytes":
        sum_NM *= gl.load(ptrs_N[1])[:, None]
    return sum_NM


@gluon.jit
def sum_of_planes(ptrs_NM, there_NM, plane, PLANES: gl.constexpr):
    """Add what programs have stored, in their order; plane: elements from one to the next."""
    sum_NM = gl.load(ptrs_NM, mask=there_NM, other=0.0, cache_modifier=".cg")
    for other in gl.static_range(1, PLANES):
        at_NM = ptrs_NM + other * plane
        sum_NM += gl.load(at_NM, mask=there_NM, other=0.0, cache_modifier=".cg")
    return sum_NM


@gluon.jit(do_not_specialize=["num_rows", "steps"])
def packed(
    y_ptr, x_desc, word_desc, scale_ptr, zero_ptr, bias_ptr, partial_ptr, counter_ptr,
    num_rows, N, K, steps, GROUP: gl.constexpr, ZEROS: gl.constexpr, BIAS: gl.constexpr,
    SPAN: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Up to BLOCK_M rows of x. Grid: (N / BLOCK_N, SPLIT_K).

    Args:
        x_desc, word_desc: Tiles [BLOCK_M, PLACES * SPAN] of x, and [BLOCK_N, SPAN] of words
            [chunks * N, SPAN]; behind an end they are 0.
        partial_ptr: [SPLIT_K, num_rows, N] float32, scratch.
        scale_ptr, zero_ptr: As kernel `grouped` takes them.
        counter_ptr: [N / BLOCK_N] int32, zero before and after.
        steps: Chunks that one program multiplies.
    """
    DTYPE: gl.constexpr = x_desc.dtype
    ACC: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BLOCK_M, 16]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=ACC, k_width=2)
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, num_warps], [0, 1])
    NBYTES: gl.constexpr = (BLOCK_N + PLACES * BLOCK_M) * SPAN * 2
    tile, part = gl.program_id(0), gl.program_id(1)
    first_n, first = tile * BLOCK_N, part * steps
    steps = gl.minimum(steps, (K + PLACES * SPAN - 1) // (PLACES * SPAN) - first)
    words = gl.allocate_shared_memory(word_desc.dtype, [STAGES, BLOCK_N, SPAN], word_desc.layout)
    xs = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_M, PLACES * SPAN], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
    for slot in gl.static_range(STAGES):
        bar, word_tile = full.index(slot), words.index(slot)
        ask_words(word_desc, first + slot, first_n, N, bar, word_tile, NBYTES, slot < steps)
    n_N = first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(1, ACC))
    ptrs_N = (scale_ptr + gl.minimum(n_N, N - 1), zero_ptr + gl.minimum(n_N, N - 1))
    held = scales_and_zeros(ptrs_N, first, K, N, GROUP, ZEROS, SPAN)
    out_N = first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(1, OUT))
    bias_N = out_N
    if BIAS:
        bias_N = gl.load(bias_ptr + out_N, mask=out_N < N, other=0.0)
    wait()
    for slot in gl.static_range(STAGES):
        at, bar = (first + slot) * PLACES * SPAN, full.index(slot)
        tma.async_copy_global_to_shared(x_desc, [0, at], bar, xs.index(slot), pred=slot < steps)
    sum_NM = multiply(
        gl.zeros([BLOCK_N, BLOCK_M], gl.float32, ACC), x_desc, word_desc, ptrs_N, held, first,
        steps, first_n, N, K, words, xs, full, GROUP, ZEROS, NBYTES, LEFT,
    )  # fmt: skip
    for slot in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(slot))
    if SPLIT_K > 1:
        m_M = gl.arange(0, BLOCK_M, gl.SliceLayout(0, ACC))
        cell_ptrs_NM = partial_ptr + m_M[None, :] * N + n_N[:, None]
        there_NM, plane = (n_N < N)[:, None] & (m_M < num_rows)[None, :], num_rows * N
        gl.store(cell_ptrs_NM + part * plane, sum_NM, mask=there_NM)
        if not last_to_arrive(counter_ptr + tile, SPLIT_K):
            return
        sum_NM = sum_of_planes(cell_ptrs_NM, there_NM, plane, SPLIT_K)
    store_rows(y_ptr, sum_NM, bias_N, bias_N, bias_N, first_n, num_rows, N, BIAS, False, OUT)
