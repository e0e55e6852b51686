"""Products of few rows with 8-bit floats whose scales cover blocks, for sm_90 alone.

As `streamed`, the copy engine fills a ring with tiles of both operands. A step has two blocks of
columns. Warpgroups multiply both, and each one's sums are scaled in float32 by the scales of its
rows, which were asked for a step before. The weight's first scales are asked for as its first tiles
are, before the kernel in front has ended.

Shape suffixes: N output features, K columns of a block, M rows of x.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from hotshoe_cuda.kernels.streamed import ask, barrier, last_to_arrive, store_rows, wait


@gluon.jit
def scales_of_weight(w_scale_ptr, block, blocks):
    """Return those of a block of columns and of the next; 0 behind the last."""
    one = gl.load(w_scale_ptr + block, mask=block < blocks, other=0.0)
    return one, gl.load(w_scale_ptr + block + 1, mask=block + 1 < blocks, other=0.0)


@gluon.jit
def scales_of_x(x_scale_ptrs_M, there_M, block, blocks, num_rows):
    """Return those of a block of columns and of the next; 0 behind the last."""
    ptrs_M = x_scale_ptrs_M + block * num_rows
    one_M = gl.load(ptrs_M, mask=there_M & (block < blocks), other=0.0)
    return one_M, gl.load(ptrs_M + num_rows, mask=there_M & (block + 1 < blocks), other=0.0)


@gluon.jit
def product(w_tile, x_tile, none_NM, at: gl.constexpr, WIDTH: gl.constexpr):
    """Begin to multiply the columns of a block."""
    x_KM = x_tile.slice(at, WIDTH, dim=1).permute((1, 0))
    return warpgroup_mma(
        w_tile.slice(at, WIDTH, dim=1), x_KM, none_NM, use_acc=False, is_async=True
    )


@gluon.jit
def multiply(
    sum_NM, x_desc, w_desc, first_n, first_block, steps, x_ring, w_ring, full, x_scale_ptrs_M,
    there_M, w_scale_ptr, w_one, w_two, blocks, num_rows,
    WIDTH: gl.constexpr, NBYTES: gl.constexpr,
):  # fmt: skip
    """Return the sums of all steps; each tile is replaced by the one that is a ring behind it."""
    STAGES: gl.constexpr = w_ring.shape[0]
    slot = 0
    phase = 0
    none_NM = gl.zeros_like(sum_NM)
    one_M, two_M = scales_of_x(x_scale_ptrs_M, there_M, first_block, blocks, num_rows)
    for step in range(steps):
        bar, w_tile, x_tile = full.index(slot), w_ring.index(slot), x_ring.index(slot)
        block = first_block + 2 * step
        next_one_M, next_two_M = scales_of_x(x_scale_ptrs_M, there_M, block + 2, blocks, num_rows)
        next_one, next_two = scales_of_weight(w_scale_ptr, block + 2, blocks)
        mbarrier.wait(bar, phase)
        one = product(w_tile, x_tile, none_NM, 0, WIDTH)
        two = product(w_tile, x_tile, none_NM, WIDTH, WIDTH)
        done = warpgroup_mma_wait(num_outstanding=0, deps=(one, two))
        barrier()  # every warp has read the tiles
        there = step + STAGES < steps
        at = (block + 2 * STAGES) * WIDTH
        mbarrier.expect(bar, NBYTES, pred=there)
        tma.async_copy_global_to_shared(w_desc, [first_n, at], bar, w_tile, pred=there)
        tma.async_copy_global_to_shared(x_desc, [0, at], bar, x_tile, pred=there)
        sum_NM += done[0] * (one_M * w_one)[None, :] + done[1] * (two_M * w_two)[None, :]
        one_M, two_M = next_one_M, next_two_M
        w_one, w_two = next_one, next_two
        slot += 1
        if slot == STAGES:
            slot = 0
            phase ^= 1
    return sum_NM


@gluon.jit(do_not_specialize=["num_rows", "split_k", "steps"])
def streamed_blocks(
    y_ptr, x_desc, w_desc, bias_ptr, w_scale_ptr, x_scale_ptr, partial_ptr, counter_ptr,
    num_rows, N, blocks, split_k, steps,
    BIAS: gl.constexpr, WIDTH: gl.constexpr, HEIGHT: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, SPLIT: gl.constexpr, STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Up to BLOCK_M rows. Grid: (N / BLOCK_N, split_k).

    Args:
        x_desc, w_desc: Tiles [BLOCK_M, 2 * WIDTH] and [BLOCK_N, 2 * WIDTH]; behind an end they
            are 0.
        w_scale_ptr: [N / HEIGHT, blocks], rounded up. x_scale_ptr: [blocks, num_rows].
        partial_ptr: [split_k, N padded to BLOCK_N, BLOCK_M] float32, scratch.
        counter_ptr: [N / BLOCK_N] int32, zero before and after.
        blocks: Of a row. steps: Pairs of them that one program multiplies.
    """
    ACC: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BLOCK_M, 32]
    )
    LANES: gl.constexpr = min(BLOCK_N // 8, 32)
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [LANES, 32 // LANES], [1, num_warps], [0, 1])
    BLOCK_K: gl.constexpr = 2 * WIDTH
    NBYTES: gl.constexpr = (BLOCK_N + BLOCK_M) * BLOCK_K
    tile, part = gl.program_id(0), gl.program_id(1)
    first_n, first_block = tile * BLOCK_N, part * steps * 2
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], w_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
    ask(w_desc, first_n, first_block * WIDTH, steps, w_ring, full, NBYTES)
    n_N = first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(1, OUT))
    bias_N = n_N
    if BIAS:
        bias_N = gl.load(bias_ptr + n_N, mask=n_N < N, other=0.0)
    w_scale_ptr += first_n // HEIGHT * blocks
    w_one, w_two = scales_of_weight(w_scale_ptr, first_block, blocks)
    wait()
    ask(x_desc, 0, first_block * WIDTH, steps, x_ring, full, 0)
    m_M = gl.arange(0, BLOCK_M, gl.SliceLayout(0, ACC))
    sum_NM = multiply(
        gl.zeros([BLOCK_N, BLOCK_M], gl.float32, ACC), x_desc, w_desc, first_n, first_block, steps,
        x_ring, w_ring, full, x_scale_ptr + m_M, m_M < num_rows,
        w_scale_ptr, w_one, w_two, blocks, num_rows, WIDTH, NBYTES,
    )  # fmt: skip
    for slot in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(slot))
    if SPLIT:
        plane = gl.num_programs(0).to(gl.int64) * (BLOCK_N * BLOCK_M)
        own_N = first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(1, ACC))
        cell_NM = own_N[:, None] * BLOCK_M + m_M[None, :]
        gl.store(partial_ptr + part * plane + cell_NM, sum_NM)
        if not last_to_arrive(counter_ptr + tile, split_k):
            return
        sum_NM = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, ACC)
        for other in range(split_k):
            sum_NM += gl.load(partial_ptr + other * plane + cell_NM, cache_modifier=".cg")
    store_rows(y_ptr, sum_NM, bias_N, bias_N, bias_N, first_n, num_rows, N, BIAS, False, OUT)
