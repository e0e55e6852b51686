"""Latent attention of steps that only decode, for sm_90: three warpgroups and the copy engine.

A program takes 64 heads of a stretch of cached rows. One warpgroup asks the copy engine for tiles
of rows, a ring of them, scores them and makes weights; two others mix the rows, each half of the
channels, so that accumulators fit registers and no row is read twice. They meet at barriers in
shared memory alone. Weights take the place of a tile's rotated keys, which nobody needs once the
tile is scored. Triton cannot say who does what, so this is Gluon, as `streamed` is.

Every program gets an equal stretch of all requests' tiles, rounded so that stretches of equal
requests end where these do. Pieces of a request that several programs share go to scratch, and
`join_pieces` of the portable package's kernels makes results of them.

Shape suffixes: M heads of a program, N cached rows of a tile, L half of the latent channels,
R requests.
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
from hotshoe_triton.kernels import latent as portable

LOG2E = gl.constexpr(1.4426950408889634)
BOTTOM = gl.constexpr(-1.0e30)
#: Heads of a program, rows of a tile, tiles of the ring; channels of half a latent, and rotated.
HEADS, ROWS, STAGES = gl.constexpr(64), gl.constexpr(32), gl.constexpr(4)
HALF, TURNED = gl.constexpr(256), gl.constexpr(64)


stretch = gluon.jit(portable.stretch.fn)


@gluon.jit
def plus(a, b):
    return a + b


@gluon.jit
def shares(seq_lens_ptr, num_reqs, MIN_TILES: gl.constexpr, BLOCK_R: gl.constexpr):
    """Return where each request's tiles end in the list of all [R], and this program's stretch."""
    ALONG: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    index_R = gl.arange(0, BLOCK_R, ALONG)
    there_R = index_R < num_reqs
    tiles_R = gl.cdiv(gl.load(seq_lens_ptr + index_R, mask=there_R, other=0), ROWS)
    tiles_R = gl.where(there_R, gl.maximum(tiles_R, 1), 0)
    end_R = gl.associative_scan(tiles_R, 0, plus)
    total = gl.sum(tiles_R, 0)
    size = stretch(total, gl.num_programs(1), MIN_TILES)
    at = gl.program_id(1) * size
    return end_R, at, gl.minimum(at + size, total)


@gluon.jit
def locate(at, end, end_R, seq_lens_ptr):
    """Return the request that holds a tile of the list, its length, where its tiles begin and end
    in the list, and where this program's part of them ends."""
    request = gl.sum((end_R <= at).to(gl.int32), 0)
    stop = gl.min(gl.where(end_R > at, end_R, 2147483647), 0)
    seq_len = gl.load(seq_lens_ptr + request)
    return (
        request,
        seq_len,
        stop - gl.maximum(gl.cdiv(seq_len, ROWS), 1),
        stop,
        gl.minimum(stop, end),
    )


@gluon.jit
def place(step):
    """Return the place of a step's tile in the ring, and the parity of that place's turn."""
    return step % STAGES, step // STAGES & 1


@gluon.jit
def aim(
    at, end, request, seq_len, begin, stop, end_R, table_ptr, seq_lens_ptr, table_stride,
    BLOCK_SIZE: gl.constexpr,
):  # fmt: skip
    """Return the request that holds tile `at`, as `locate` does, and the page of that tile."""
    if (at < end) & (at >= stop):
        request, seq_len, begin, stop, _until = locate(at, end, end_R, seq_lens_ptr)
    key = (at - begin) * ROWS
    page_ptr = table_ptr + request.to(gl.int64) * table_stride + key // BLOCK_SIZE
    return request, seq_len, begin, stop, gl.load(page_ptr, mask=key < seq_len, other=0)


@gluon.jit
def ask(at, begin, page, step, left_desc, turned_desc, rings, full, free, BLOCK_SIZE: gl.constexpr):
    """Ask the copy engine for tile `at` of the list, once its place is free."""
    left, right, turned = rings
    slot, parity = place(step)
    bar = full.index(slot)
    first = page * BLOCK_SIZE + (at - begin) * ROWS % BLOCK_SIZE
    mbarrier.wait(free.index(slot), parity ^ 1)
    mbarrier.expect(bar, ROWS * (2 * HALF + TURNED) * 2)
    tma.async_copy_global_to_shared(turned_desc, [first, 2 * HALF], bar, turned.index(slot))
    tma.async_copy_global_to_shared(left_desc, [first, 0], bar, left.index(slot))
    tma.async_copy_global_to_shared(left_desc, [first, HALF], bar, right.index(slot))


@gluon.jit
def begin_asking(
    at, end, end_R, left_desc, turned_desc, table_ptr, seq_lens_ptr, table_stride, rings, full,
    free,
    BLOCK_SIZE: gl.constexpr,
):  # fmt: skip
    """Ask for the first tiles; return which is next, how many were asked for, and `aim` of it."""
    to_ask, asked, request = at, 0, at * 0
    its_len, its_begin, its_stop = request, request, request
    for _ in gl.static_range(STAGES - 1):
        request, its_len, its_begin, its_stop, page = aim(
            to_ask, end, request, its_len, its_begin, its_stop, end_R, table_ptr, seq_lens_ptr,
            table_stride, BLOCK_SIZE,
        )  # fmt: skip
        if to_ask < end:
            ask(to_ask, its_begin, page, asked, left_desc, turned_desc, rings, full, free,
                BLOCK_SIZE)  # fmt: skip
        to_ask += 1
        asked += 1
    request, its_len, its_begin, its_stop, page = aim(
        to_ask, end, request, its_len, its_begin, its_stop, end_R, table_ptr, seq_lens_ptr,
        table_stride, BLOCK_SIZE,
    )  # fmt: skip
    return to_ask, asked, request, its_len, its_begin, its_stop, page


@gluon.jit
def clear(tile, there, LAYOUT: gl.constexpr):
    """Put zeros where a tile has no rows: anything may lie there, NaN too."""
    row_N = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    rows_NL = tile.load(LAYOUT)
    tile.store(gl.where((row_N < there)[:, None], rows_NL, gl.zeros_like(rows_NL)))


@gluon.jit
def clear_tile(rings, slot, there):
    """Clear all parts of a tile behind its first `there` rows."""
    ROWWISE: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    NARROW: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    left, right, turned = rings
    clear(left.index(slot), there, ROWWISE)
    clear(right.index(slot), there, ROWWISE)
    clear(turned.index(slot), there, NARROW)
    fence_async_shared()
    barrier()


@gluon.jit
def ask_queries(
    wide_desc, q_desc, request, queries, q_full, NUM_HEADS: gl.constexpr, NOPE: gl.constexpr
):
    """Ask the copy engine for a request's queries."""
    q_left, q_right, q_turned = queries
    row = request * NUM_HEADS + gl.program_id(0) * HEADS
    mbarrier.expect(q_full, HEADS * (2 * HALF + TURNED) * 2)
    tma.async_copy_global_to_shared(wide_desc, [row, 0], q_full, q_left)
    tma.async_copy_global_to_shared(wide_desc, [row, HALF], q_full, q_right)
    tma.async_copy_global_to_shared(q_desc, [row, NOPE], q_full, q_turned)


@gluon.jit
def softened(scores_MN, sum_M, top_M, SCALE: gl.constexpr):
    """Return weights, the factor of what was mixed before, and the new sum and maximum."""
    new_top_M = gl.maximum(top_M, gl.max(scores_MN, 1) * (SCALE * LOG2E))
    weights_MN = gl.exp2(scores_MN * (SCALE * LOG2E) - new_top_M[:, None])
    shrink_M = gl.exp2(top_M - new_top_M)
    return weights_MN, shrink_M, sum_M * shrink_M + gl.sum(weights_MN, 1), new_top_M


@gluon.jit
def leave(weights_MN, shrink_M, sum_M, top_M, turned, stats, slot, ready):
    """Leave a tile's weights and numbers where `mix` reads them."""
    dtype: gl.constexpr = turned.dtype
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout(64, 16, 2)
    turned.index(slot)._reinterpret(dtype, [HEADS, ROWS], WEIGHTS).store(weights_MN.to(dtype))
    stats.index(slot * 3).store(shrink_M)
    stats.index(slot * 3 + 1).store(sum_M)
    stats.index(slot * 3 + 2).store(top_M)
    fence_async_shared()
    barrier()
    mbarrier.arrive(ready.index(slot), count=1)


@gluon.jit
def scored(scores_MN, rings, queries, slot):
    """Begin to score a tile of the ring; return what to wait for."""
    left, right, turned = rings
    q_left, q_right, q_turned = queries
    scores_MN = warpgroup_mma(
        q_turned, turned.index(slot).permute((1, 0)), scores_MN, use_acc=False, is_async=True
    )
    scores_MN = warpgroup_mma(q_left, left.index(slot).permute((1, 0)), scores_MN, is_async=True)
    return warpgroup_mma(q_right, right.index(slot).permute((1, 0)), scores_MN, is_async=True)


@gluon.jit
def weigh(
    wide_desc, q_desc, left_desc, turned_desc, table_ptr, seq_lens_ptr, num_reqs, table_stride,
    rings, queries, stats, bars,
    NUM_HEADS: gl.constexpr, NOPE: gl.constexpr, BLOCK_SIZE: gl.constexpr, SCALE: gl.constexpr,
    MIN_TILES: gl.constexpr, BLOCK_R: gl.constexpr,
):  # fmt: skip
    """Score tiles, and leave weights, factors of what was mixed before, sums and maxima."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    full, free, ready, q_full = bars
    end_R, at, end = shares(seq_lens_ptr, num_reqs, MIN_TILES, BLOCK_R)
    key_N = gl.arange(0, ROWS, gl.SliceLayout(0, ACC))
    step = 0
    segment = 0
    to_ask, asked, request, its_len, its_begin, its_stop, page = begin_asking(
        at, end, end_R, left_desc, turned_desc, table_ptr, seq_lens_ptr, table_stride, rings,
        full, free, BLOCK_SIZE,
    )  # fmt: skip
    while at < end:
        of, seq_len, begin, _stop, until = locate(at, end, end_R, seq_lens_ptr)
        ask_queries(wide_desc, q_desc, of, queries, q_full, NUM_HEADS, NOPE)
        top_M = gl.full([HEADS], BOTTOM, gl.float32, gl.SliceLayout(1, ACC))
        sum_M = gl.zeros([HEADS], gl.float32, gl.SliceLayout(1, ACC))
        blank_MN = gl.zeros([HEADS, ROWS], gl.float32, ACC)
        mbarrier.wait(q_full, segment & 1)
        last = until - begin - 1
        slot, parity = place(step)
        mbarrier.wait(full.index(slot), parity)
        there = seq_len - (at - begin) * ROWS
        if there < ROWS:
            clear_tile(rings, slot, there)
        token = scored(blank_MN, rings, queries, slot)
        scores_MN = warpgroup_mma_wait(0, deps=(token,))
        for tile in range(at - begin, until - begin):
            slot, _parity = place(step)
            # The last tile is scored again, for nobody, so that all turns are alike.
            ahead = gl.where(tile < last, step + 1, step)
            next_slot, next_parity = place(ahead)
            mbarrier.wait(full.index(next_slot), next_parity)
            there = seq_len - (tile + 1) * ROWS
            if (there < ROWS) & (tile < last):
                clear_tile(rings, next_slot, there)
            token = scored(blank_MN, rings, queries, next_slot)
            scores_MN = gl.where((key_N + tile * ROWS < seq_len)[None, :], scores_MN, float("-inf"))
            weights_MN, shrink_M, sum_M, top_M = softened(scores_MN, sum_M, top_M, SCALE)
            leave(weights_MN, shrink_M, sum_M, top_M, rings[2], stats, slot, ready)
            if to_ask < end:
                ask(to_ask, its_begin, page, asked, left_desc, turned_desc, rings, full, free,
                    BLOCK_SIZE)  # fmt: skip
            to_ask += 1
            asked += 1
            scores_MN = warpgroup_mma_wait(0, deps=(token,))
            step += 1
            request, its_len, its_begin, its_stop, page = aim(
                to_ask, end, request, its_len, its_begin, its_stop, end_R, table_ptr, seq_lens_ptr,
                table_stride, BLOCK_SIZE,
            )  # fmt: skip
        barrier()  # every warp has read the queries
        at = until
        segment += 1


@gluon.jit
def mix(
    out_ptr, partial_ptr, stats_ptr, seq_lens_ptr, num_reqs, half, turned, stats, bars,
    SIDE: gl.constexpr, NUM_HEADS: gl.constexpr, MIN_TILES: gl.constexpr, BLOCK_R: gl.constexpr,
):  # fmt: skip
    """Mix one half of the rows' channels, and store results or pieces of them."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout(64, 16, 2)
    ALONG: gl.constexpr = gl.SliceLayout(1, ACC)
    full, free, ready, _q_full = bars
    dtype: gl.constexpr = half.dtype
    end_R, at, end = shares(seq_lens_ptr, num_reqs, MIN_TILES, BLOCK_R)
    row_M = gl.program_id(0) * HEADS + gl.arange(0, HEADS, ALONG)
    channel_L = SIDE * HALF + gl.arange(0, HALF, gl.SliceLayout(0, ACC))
    step = 0
    while at < end:
        request, _seq_len, begin, stop, until = locate(at, end, end_R, seq_lens_ptr)
        acc_ML = gl.zeros([HEADS, HALF], gl.float32, ACC)
        sum_M = gl.zeros([HEADS], gl.float32, ALONG)
        top_M = gl.zeros([HEADS], gl.float32, ALONG)
        for _tile in range(at, until):
            slot, parity = place(step)
            mbarrier.wait(full.index(slot), parity)
            mbarrier.wait(ready.index(slot), parity)
            shrink_M = stats.index(slot * 3).load(ALONG)
            sum_M = stats.index(slot * 3 + 1).load(ALONG)
            top_M = stats.index(slot * 3 + 2).load(ALONG)
            acc_ML = acc_ML * shrink_M[:, None]
            weights = turned.index(slot)._reinterpret(dtype, [HEADS, ROWS], WEIGHTS)
            acc_ML = warpgroup_mma(weights, half.index(slot), acc_ML, is_async=True)
            acc_ML = warpgroup_mma_wait(0, deps=(acc_ML,))
            barrier()
            mbarrier.arrive(free.index(slot), count=1)
            step += 1
        if (at == begin) & (until == stop):
            y_ML = acc_ML / gl.where(sum_M > 0, sum_M, 1.0)[:, None]
            at_M = (request.to(gl.int64) * NUM_HEADS + row_M) * (2 * HALF)
            gl.store(out_ptr + at_M[:, None] + channel_L[None, :], y_ML.to(dtype))
        else:
            piece = (gl.program_id(1) * 2 + (at == begin).to(gl.int32)).to(gl.int64)
            at_M = piece * NUM_HEADS + row_M
            gl.store(partial_ptr + (at_M * (2 * HALF))[:, None] + channel_L[None, :], acc_ML)
            if SIDE == 0:
                gl.store(stats_ptr + at_M * 2, top_M)
                gl.store(stats_ptr + at_M * 2 + 1, sum_M)
        at = until


@gluon.jit(do_not_specialize=["num_reqs"])
def latent_decode(
    out_ptr, wide_desc, q_desc, left_desc, turned_desc, table_ptr, seq_lens_ptr,
    partial_ptr, stats_ptr, num_reqs, table_stride,
    NUM_HEADS: gl.constexpr, NOPE: gl.constexpr, BLOCK_SIZE: gl.constexpr, SCALE: gl.constexpr,
    MIN_TILES: gl.constexpr, BLOCK_R: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Grid: (NUM_HEADS / 64, programs).

    Args:
        wide_desc, q_desc: Tiles [64, 256] of wide and [64, 64] of q, both rows of heads.
        left_desc, turned_desc: Tiles [32, 256] and [32, 64] of the cache's rows.
        partial_ptr, stats_ptr: [programs * 2, NUM_HEADS, 512] and [.., 2] float32, scratch.
    """
    wait()
    dtype: gl.constexpr = wide_desc.dtype
    q_left = gl.allocate_shared_memory(dtype, [HEADS, HALF], wide_desc.layout)
    q_right = gl.allocate_shared_memory(dtype, [HEADS, HALF], wide_desc.layout)
    q_turned = gl.allocate_shared_memory(dtype, [HEADS, TURNED], q_desc.layout)
    left = gl.allocate_shared_memory(dtype, [STAGES, ROWS, HALF], left_desc.layout)
    right = gl.allocate_shared_memory(dtype, [STAGES, ROWS, HALF], left_desc.layout)
    turned = gl.allocate_shared_memory(dtype, [STAGES, ROWS, TURNED], turned_desc.layout)
    stats = gl.allocate_shared_memory(
        gl.float32, [STAGES * 3, HEADS], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=2)
        mbarrier.init(ready.index(slot), count=1)
    mbarrier.init(q_full, count=1)
    fence_async_shared()
    barrier()
    rings = (left, right, turned)
    queries = (q_left, q_right, q_turned)
    bars = (full, free, ready, q_full)
    gl.warp_specialize(
        [
            (weigh, (wide_desc, q_desc, left_desc, turned_desc, table_ptr, seq_lens_ptr, num_reqs,
                     table_stride, rings, queries, stats, bars, NUM_HEADS, NOPE, BLOCK_SIZE, SCALE,
                     MIN_TILES, BLOCK_R)),
            (mix, (out_ptr, partial_ptr, stats_ptr, seq_lens_ptr, num_reqs, left, turned, stats,
                   bars, gl.constexpr(0), NUM_HEADS, MIN_TILES, BLOCK_R)),
            (mix, (out_ptr, partial_ptr, stats_ptr, seq_lens_ptr, num_reqs, right, turned, stats,
                   bars, gl.constexpr(1), NUM_HEADS, MIN_TILES, BLOCK_R)),
        ],
        [4, 4],
        [168, 168],
    )  # fmt: skip
