"""Products of few rows whose weight streams through shared memory, for sm_90 alone.

The copy engine keeps a ring of tiles full while warpgroups multiply. The first tiles of the weight
are asked for before the kernel in front has ended; only x waits for that. Triton cannot say either,
so this is Gluon, its lower level: no interpreter runs it and no other architecture compiles it.

Shape suffixes: N output features, K input features, M rows of x.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

#: Triton 3.7 renamed it.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.jit
def wait():
    """Let the next kernel begin, and go on once all that earlier ones wrote is visible."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], gl.int32, is_pure=False, pack=1
    )
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // $0", "=r", [], gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def last_to_arrive(counter_ptr, split_k):
    """Count this program in; return whether the others have finished, and reset the counter."""
    barrier()
    last = gl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") == split_k - 1
    if last:
        gl.store(counter_ptr, 0)
    return last


@gluon.jit
def ask(desc, row, first_k, steps, ring, full, NBYTES: gl.constexpr):
    """Ask for an operand's first tiles. NBYTES: of both operands' tiles, for the first to say."""
    STAGES: gl.constexpr = ring.shape[0]
    for slot in gl.static_range(STAGES):
        there = slot < steps
        if NBYTES > 0:
            mbarrier.expect(full.index(slot), NBYTES, pred=there)
        at = first_k + slot * ring.shape[2]
        tma.async_copy_global_to_shared(
            desc, [row, at], full.index(slot), ring.index(slot), pred=there
        )


@gluon.jit
def multiply(
    sum_NM, x_desc, w_desc, first_n, first_k, steps, x_ring, w_ring, full, NBYTES: gl.constexpr
):
    """Return the sums of all steps; each tile is replaced by the one that is a ring behind it."""
    STAGES: gl.constexpr = w_ring.shape[0]
    BLOCK_K: gl.constexpr = w_ring.shape[2]
    slot = 0
    phase = 0
    for step in range(steps):
        bar, w_tile, x_tile = full.index(slot), w_ring.index(slot), x_ring.index(slot)
        mbarrier.wait(bar, phase)
        token = warpgroup_mma(w_tile, x_tile.permute((1, 0)), sum_NM, is_async=True)
        sum_NM = warpgroup_mma_wait(num_outstanding=0, deps=(token,))
        barrier()  # every warp has read the tile
        there = step + STAGES < steps
        at = first_k + (step + STAGES) * BLOCK_K
        mbarrier.expect(bar, NBYTES, pred=there)
        tma.async_copy_global_to_shared(w_desc, [first_n, at], bar, w_tile, pred=there)
        tma.async_copy_global_to_shared(x_desc, [0, at], bar, x_tile, pred=there)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase ^= 1
    return sum_NM


@gluon.jit
def store_rows(
    y_ptr, sum_NM, bias_N, w_scale_N, x_scale_ptr, first_n, num_rows, N,
    BIAS: gl.constexpr, SCALED: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Scale, add the bias, and store a tile of y [num_rows, N]."""
    BLOCK_N: gl.constexpr = sum_NM.shape[0]
    BLOCK_M: gl.constexpr = sum_NM.shape[1]
    n_N = first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(1, OUT))
    m_M = gl.arange(0, BLOCK_M, gl.SliceLayout(0, OUT))
    if SCALED:
        y_NM = gl.convert_layout(sum_NM, OUT)
        x_scale_M = gl.load(x_scale_ptr + m_M, mask=m_M < num_rows, other=0.0)
        y_NM = y_NM * x_scale_M[None, :] * w_scale_N[:, None]
    elif BIAS:
        y_NM = gl.convert_layout(sum_NM, OUT)
    else:  # rounded first: half as much goes through shared memory
        y_NM = gl.convert_layout(sum_NM.to(y_ptr.dtype.element_ty), OUT)
    if BIAS:
        y_NM += bias_N.to(gl.float32)[:, None]
    there_NM = (n_N < N)[:, None] & (m_M < num_rows)[None, :]
    y_ptrs_NM = y_ptr + m_M[None, :].to(gl.int64) * N + n_N[:, None]
    gl.store(y_ptrs_NM, y_NM.to(y_ptr.dtype.element_ty), mask=there_NM)


@gluon.jit(do_not_specialize=["num_rows", "split_k", "steps"])
def streamed(
    y_ptr, x_desc, w_desc, bias_ptr, w_scale_ptr, x_scale_ptr, partial_ptr, counter_ptr,
    num_rows, N, split_k, steps,
    BIAS: gl.constexpr, SCALED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, SPLIT: gl.constexpr, STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Up to BLOCK_M rows. Grid: (N / BLOCK_N, split_k).

    Args:
        x_desc, w_desc: Tiles [BLOCK_M, BLOCK_K] and [BLOCK_N, BLOCK_K]; behind an end they are 0.
        partial_ptr: [split_k, N padded to BLOCK_N, BLOCK_M] float32, scratch.
        counter_ptr: [N / BLOCK_N] int32, zero before and after.
        steps: Tiles of BLOCK_K that one program multiplies.
    """
    ITEM: gl.constexpr = w_desc.dtype.primitive_bitwidth // 8
    ACC: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BLOCK_M, 32 // ITEM]
    )
    LANES: gl.constexpr = min(BLOCK_N // 8, 32)
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [LANES, 32 // LANES], [1, num_warps], [0, 1])
    NBYTES: gl.constexpr = (BLOCK_N + BLOCK_M) * BLOCK_K * ITEM
    tile, part = gl.program_id(0), gl.program_id(1)
    first_n, first_k = tile * BLOCK_N, part * steps * BLOCK_K
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], w_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
    ask(w_desc, first_n, first_k, steps, w_ring, full, NBYTES)
    n_N = first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(1, OUT))
    bias_N = n_N
    w_scale_N = n_N
    if BIAS:
        bias_N = gl.load(bias_ptr + n_N, mask=n_N < N, other=0.0)
    if SCALED:
        w_scale_N = gl.load(w_scale_ptr + n_N, mask=n_N < N, other=0.0)
    wait()
    ask(x_desc, 0, first_k, steps, x_ring, full, 0)
    sum_NM = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, ACC)
    sum_NM = multiply(sum_NM, x_desc, w_desc, first_n, first_k, steps, x_ring, w_ring, full, NBYTES)
    for slot in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(slot))
    if SPLIT:
        plane = gl.num_programs(0).to(gl.int64) * (BLOCK_N * BLOCK_M)
        own_N = first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(1, ACC))
        cell_NM = own_N[:, None] * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(0, ACC))[None, :]
        gl.store(partial_ptr + part * plane + cell_NM, sum_NM)
        if not last_to_arrive(counter_ptr + tile, split_k):
            return
        sum_NM = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, ACC)
        for other in range(split_k):
            sum_NM += gl.load(partial_ptr + other * plane + cell_NM, cache_modifier=".cg")
    store_rows(y_ptr, sum_NM, bias_N, w_scale_N, x_scale_ptr, first_n, num_rows, N,
               BIAS, SCALED, OUT)  # fmt: skip
