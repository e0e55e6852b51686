"""Products of many rows with 8-bit floats whose scales cover blocks, for sm_90 alone.

A program stays, and takes tiles of y one after the other. Each of two warpgroups has 64 rows of x.
It has the sums of two blocks of columns in turn: while one block is multiplied, the sums of the
block before are scaled and added in float32. One warp more asks the copy engine for tiles of both
operands and for the scales of x, also for the next tile of y while the last one is stored.

Shape suffixes: M rows of x, N output features.
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

from hotshoe_cuda.kernels.streamed import barrier, last_to_arrive, wait

#: Rows of x of a warpgroup, warpgroups, and rows and columns of a block.
ROWS, CONSUMERS, WIDTH = gl.constexpr(64), gl.constexpr(2), gl.constexpr(128)


@gluon.jit
def place(unit, sizes, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr):
    """Return a unit's tile, its part of the blocks, and the tile's first row and output.

    Programs that run together share GROUP_M tiles of x's rows.
    """
    num_rows, N, _blocks, split_k, _units = sizes
    tile, part = unit // split_k, unit % split_k
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    tiles_m, tiles_n = (num_rows + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
    group, inside = tile // (GROUP_M * tiles_n), tile % (GROUP_M * tiles_n)
    high = gl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    return tile, part, (group * GROUP_M + inside % high) * BLOCK_M, inside // high * BLOCK_N


@gluon.jit
def bring(x_desc, w_desc, x_scale_desc, rings, sizes, GROUP_M: gl.constexpr):
    """Ask for tiles of all units, block by block, as places become free."""
    num_rows, _N, blocks, split_k, units = sizes
    x_ring, w_ring, x_scales, full, free = rings
    STAGES: gl.constexpr = w_ring.shape[0]
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    BLOCK_N: gl.constexpr = w_ring.shape[1]
    NBYTES: gl.constexpr = (BLOCK_M + BLOCK_N) * WIDTH + 4 * BLOCK_M
    count = blocks // split_k
    slot = 0
    phase = 1
    wait()
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        _tile, part, first_m, first_n = place(unit, sizes, BLOCK_N, GROUP_M)
        for block in range(part * count, part * count + count):
            bar = full.index(slot)
            mbarrier.wait(free.index(slot), phase)
            mbarrier.expect(bar, NBYTES)
            for side in gl.static_range(CONSUMERS):
                tma.async_copy_global_to_shared(
                    x_desc, [first_m + side * ROWS, block * WIDTH], bar,
                    x_ring.index(slot * CONSUMERS + side),
                )  # fmt: skip
            tma.async_copy_global_to_shared(
                w_desc, [first_n, block * WIDTH], bar, w_ring.index(slot)
            )
            tma.async_copy_global_to_shared(
                x_scale_desc, [block * num_rows + first_m], bar, x_scales.index(slot)
            )
            slot, phase = after(slot, phase, STAGES)


@gluon.jit
def after(slot, phase, STAGES: gl.constexpr):
    """Return the next place of a ring and its phase."""
    slot = gl.where(slot == STAGES - 1, 0, slot + 1)
    return slot, gl.where(slot == 0, phase ^ 1, phase)


@gluon.jit
def begin(
    sum_MN, never, rings, slot, w_scale_ptr, there, SIDE: gl.constexpr, HALF: gl.constexpr = 0
):
    """Begin to multiply a block where sums were that are not needed anymore; return its scales.

    `never` is false. A constant would free the compiler to use other registers, and it lacks them.
    """
    x_ring, w_ring, x_scales, _full, _free = rings
    ALONG: gl.constexpr = gl.SliceLayout(1, sum_MN.type.layout)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    own = x_scales._reinterpret(gl.float32, [w_ring.shape[0] * CONSUMERS, ROWS], FLAT)
    place = slot * CONSUMERS + SIDE
    w_tile = w_ring.index(slot).slice(HALF * WIDTH, WIDTH, dim=0).permute((1, 0))
    token = warpgroup_mma(x_ring.index(place), w_tile, sum_MN, use_acc=never, is_async=True)
    return token, own.index(place).load(ALONG) * gl.load(w_scale_ptr, mask=there, other=0.0)


@gluon.jit
def end(sum_MN, token, scale_M, rings, slot, OUTSTANDING: gl.constexpr, LAST: gl.constexpr = True):
    """Wait for a block's sums, give its place back, and return all sums and those.

    The sums are made opaque, or the compiler would add later, when other sums have the registers.
    """
    done_MN = warpgroup_mma_wait(OUTSTANDING, deps=(token,))
    if LAST:
        barrier()
        mbarrier.arrive(rings[4].index(slot), count=1)
    sum_MN += done_MN * scale_M[:, None]
    sum_MN = gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [sum_MN], gl.float32, is_pure=False, pack=1
    )
    return sum_MN, done_MN


@gluon.jit
def multiply(sum_MN, never, rings, slot, phase, w_scale_ptr, count, SIDE: gl.constexpr):
    """Return the sums of `count` blocks, four by four, and which place is next."""
    STAGES: gl.constexpr = rings[1].shape[0]
    full = rings[3]
    one_MN, two_MN = sum_MN, sum_MN
    for first in range(0, count, 4):
        ptr = w_scale_ptr + first
        mbarrier.wait(full.index(slot), phase)
        one, one_M = begin(one_MN, never, rings, slot, ptr, True, SIDE)
        for pair in gl.static_range(2):
            before = slot
            slot, phase = after(slot, phase, STAGES)
            mbarrier.wait(full.index(slot), phase)
            two, two_M = begin(two_MN, never, rings, slot, ptr + 2 * pair + 1, True, SIDE)
            sum_MN, one_MN = end(sum_MN, one, one_M, rings, before, 1)
            before = slot
            slot, phase = after(slot, phase, STAGES)
            if pair == 0:
                mbarrier.wait(full.index(slot), phase)
                one, one_M = begin(one_MN, never, rings, slot, ptr + 2, True, SIDE)
                sum_MN, two_MN = end(sum_MN, two, two_M, rings, before, 1)
            else:
                sum_MN, two_MN = end(sum_MN, two, two_M, rings, before, 0)
    return sum_MN, slot, phase


@gluon.jit
def multiply_wide(
    sum_MN, never, rings, slot, phase, w_scale_ptr, blocks, there, SIDE: gl.constexpr
):
    """Return the sums of all blocks for both halves of a tile's outputs, and which place is next.

    While one warpgroup adds, the other one's product runs.
    """
    STAGES: gl.constexpr = rings[1].shape[0]
    more_MN, done_MN = sum_MN, sum_MN
    for block in range(blocks):
        ptr = w_scale_ptr + block
        mbarrier.wait(rings[3].index(slot), phase)
        token, scale_M = begin(done_MN, never, rings, slot, ptr, True, SIDE)
        sum_MN, done_MN = end(sum_MN, token, scale_M, rings, slot, 0, False)
        token, scale_M = begin(done_MN, never, rings, slot, ptr + blocks, there, SIDE, 1)
        more_MN, done_MN = end(more_MN, token, scale_M, rings, slot, 0)
        slot, phase = after(slot, phase, STAGES)
    return sum_MN, more_MN, slot, phase


@gluon.jit
def store(tensors, sum_MN, first_m, first_n, N, BIAS: gl.constexpr):
    """Add the bias, and have the copy engine write 64 rows and 128 outputs."""
    y_desc, y_tile, bias_ptr = tensors[0], tensors[1], tensors[2]
    if BIAS:
        n_N = first_n + gl.arange(0, WIDTH, gl.SliceLayout(0, sum_MN.type.layout))
        sum_MN += gl.load(bias_ptr + n_N, mask=n_N < N, other=0.0).to(gl.float32)[None, :]
    tma.store_wait(0)
    barrier()  # the tile before was read
    y_tile.store(sum_MN.to(y_desc.dtype))
    fence_async_shared()
    barrier()
    tma.async_copy_shared_to_global(y_desc, [first_m, first_n], y_tile)


@gluon.jit
def sum_of_parts(tensors, sum_MN, cell, part, split_k):
    """Return whether this program is the last of a tile's parts, and the sums of all then."""
    ACC: gl.constexpr = sum_MN.type.layout
    cell_MN = gl.arange(0, ROWS, gl.SliceLayout(1, ACC))[:, None] * WIDTH
    cell_MN += gl.arange(0, WIDTH, gl.SliceLayout(0, ACC))[None, :]
    planes_ptr = tensors[4] + cell.to(gl.int64) * split_k * (ROWS * WIDTH)
    gl.store(planes_ptr + part * (ROWS * WIDTH) + cell_MN, sum_MN)
    last = last_to_arrive(tensors[5] + cell, split_k)
    if last:
        sum_MN = gl.zeros_like(sum_MN)
        for other in range(split_k):
            plane_ptr = planes_ptr + other * (ROWS * WIDTH)
            sum_MN += gl.load(plane_ptr + cell_MN, cache_modifier=".cg")
    return last, sum_MN


@gluon.jit
def consume(
    tensors, rings, sizes, SIDE: gl.constexpr, GROUP_M: gl.constexpr, SPLIT: gl.constexpr,
    BIAS: gl.constexpr,
):  # fmt: skip
    """Compute one warpgroup's rows of all units and store them."""
    _num_rows, N, blocks, split_k, units = sizes
    BLOCK_N: gl.constexpr = rings[1].shape[1]
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 32])
    count = blocks // split_k
    never = blocks < 0
    slot = 0
    phase = 0
    wait()
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        tile, part, first_m, first_n = place(unit, sizes, BLOCK_N, GROUP_M)
        first_m += SIDE * ROWS
        scale_ptr = tensors[3] + first_n // WIDTH * blocks + part * count
        sum_MN = gl.zeros([ROWS, WIDTH], gl.float32, ACC)
        if BLOCK_N > WIDTH:
            there = first_n + WIDTH < N
            sum_MN, more_MN, slot, phase = multiply_wide(
                sum_MN, never, rings, slot, phase, scale_ptr, blocks, there, SIDE
            )
            store(tensors, sum_MN, first_m, first_n, N, BIAS)
            store(tensors, more_MN, first_m, first_n + WIDTH, N, BIAS)
        else:
            sum_MN, slot, phase = multiply(
                sum_MN, never, rings, slot, phase, scale_ptr, count, SIDE
            )
            if SPLIT:
                cell = tile * CONSUMERS + SIDE
                last, sum_MN = sum_of_parts(tensors, sum_MN, cell, part, split_k)
                if last:
                    store(tensors, sum_MN, first_m, first_n, N, BIAS)
            else:
                store(tensors, sum_MN, first_m, first_n, N, BIAS)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_rows", "split_k", "units"])
def many_blocks(
    y_desc, x_desc, w_desc, bias_ptr, w_scale_ptr, x_scale_desc, partial_ptr, counter_ptr,
    num_rows, N, blocks, split_k, units,
    BIAS: gl.constexpr, SPLIT: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Any number of rows. Grid: (programs that are there at once,).

    Args:
        y_desc, x_desc, w_desc: Tiles [64, 128], [64, 128] and [128 or 256, 128]; behind an end x
            and w are 0. Tiles of 256 outputs have no parts.
        w_scale_ptr: [N / 128, blocks], rounded up. x_scale_desc: 128 of [blocks, num_rows].
        partial_ptr: [tiles, 2, split_k, 64, 128] float32, scratch.
        counter_ptr: [tiles, 2] int32, zero before and after.
        blocks: Of a row, a multiple of 4 * split_k. units: Tiles times split_k.
    """
    x_ring = gl.allocate_shared_memory(
        x_desc.dtype, [STAGES * CONSUMERS, ROWS, WIDTH], x_desc.layout
    )
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[0]
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES, BLOCK_N, WIDTH], w_desc.layout)
    y_tiles = gl.allocate_shared_memory(y_desc.dtype, [CONSUMERS, ROWS, WIDTH], y_desc.layout)
    x_scales = gl.allocate_shared_memory(
        gl.float32, [STAGES, CONSUMERS * ROWS], x_scale_desc.layout
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=CONSUMERS)
    fence_async_shared()
    barrier()
    rings = (x_ring, w_ring, x_scales, full, free)
    sizes = (num_rows, N, blocks, split_k, units)
    first = (y_desc, y_tiles.index(0), bias_ptr, w_scale_ptr, partial_ptr, counter_ptr)
    second = (y_desc, y_tiles.index(1), bias_ptr, w_scale_ptr, partial_ptr, counter_ptr)
    gl.warp_specialize(
        [
            (consume, (first, rings, sizes, 0, GROUP_M, SPLIT, BIAS)),
            (consume, (second, rings, sizes, 1, GROUP_M, SPLIT, BIAS)),
            (bring, (x_desc, w_desc, x_scale_desc, rings, sizes, GROUP_M)),
        ],
        [4, 1], [240, 32],
    )  # fmt: skip
