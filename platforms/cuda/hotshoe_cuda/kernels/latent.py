"""Latent attention of steps that only decode, for sm_90: two warpgroups in turn, and a third that
asks the copy engine.

A program takes 64 heads of a stretch of cached rows, tile by tile, two tiles at a time. Each of two
warpgroups scores one tile of a pair and makes weights of it, and mixes half of the channels of
both. So one has weights to make while the other multiplies, accumulators fit registers, and no row
is read twice. The second warpgroup scales by the maximum that the first found, and leaves its own
for the next pair. The third warpgroup asks the copy engine for the next rows as soon as a half of a
tile has been mixed. They meet at barriers in shared memory alone. Weights take the place of a
tile's rotated keys, which nobody needs once the tile is scored. Triton cannot say who does what, so
this is Gluon, as `streamed` is.

Every program gets an equal stretch of all requests' tiles, rounded so that stretches of equal
requests end where these do. Pieces of a request that several programs share go to scratch, and
`join_stretches` of the portable package's kernels makes results of them.

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
#: Heads of a program, rows of a tile, rows and channels that the copy engine brings at once.
HEADS, ROWS, BOX, PANEL = gl.constexpr(64), gl.constexpr(64), gl.constexpr(32), gl.constexpr(64)
#: Channels of half a latent, and rotated.
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
    begin = stop - gl.maximum(gl.cdiv(seq_len, ROWS), 1)
    return request, seq_len, begin, stop, gl.minimum(stop, end)


@gluon.jit
def fetch(rows_desc, first, second, channel, boxes, slot, bar, PANELS: gl.constexpr):
    """Ask for PANELS panels of a tile, whose two boxes of rows begin at rows of the cache."""
    for panel in gl.static_range(PANELS):
        at = (slot * PANELS + panel) * 2
        across = channel + panel * PANEL
        tma.async_copy_global_to_shared(rows_desc, [first, across], bar, boxes.index(at))
        tma.async_copy_global_to_shared(rows_desc, [second, across], bar, boxes.index(at + 1))


@gluon.jit
def bring(
    wide_desc, q_desc, rows_desc, table_ptr, seq_lens_ptr, num_reqs, table_stride, rings, queries,
    bars,
    NUM_HEADS: gl.constexpr, NOPE: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    MIN_TILES: gl.constexpr, BLOCK_R: gl.constexpr,
):  # fmt: skip
    """Ask the copy engine for queries and tiles, each as soon as its place is free."""
    BOXES: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    left, right, turned = rings
    q_left, q_right, q_turned = queries
    left_full, right_full, left_free, right_free, _ready, q_full, q_free, _summed = bars
    dtype: gl.constexpr = left.dtype
    left_boxes = left._reinterpret(dtype, [16, BOX, PANEL], BOXES)
    right_boxes = right._reinterpret(dtype, [16, BOX, PANEL], BOXES)
    turned_boxes = turned._reinterpret(dtype, [4, BOX, PANEL], BOXES)
    end_R, at, end = shares(seq_lens_ptr, num_reqs, MIN_TILES, BLOCK_R)
    segment = 0
    even = 0
    odd = 0
    while at < end:
        request, seq_len, begin, _stop, until = locate(at, end, end_R, seq_lens_ptr)
        row = request * NUM_HEADS + gl.program_id(0) * HEADS
        mbarrier.wait(q_free, (segment & 1) ^ 1)
        mbarrier.expect(q_full, HEADS * (2 * HALF + TURNED) * 2)
        tma.async_copy_global_to_shared(wide_desc, [row, 0], q_full, q_left.index(0))
        tma.async_copy_global_to_shared(wide_desc, [row, HALF], q_full, q_right.index(0))
        tma.async_copy_global_to_shared(q_desc, [row, NOPE], q_full, q_turned.index(0))
        table = table_ptr + request.to(gl.int64) * table_stride
        for tile in range(until - at):
            key = (at - begin + tile) * ROWS
            page = gl.load(table + key // BLOCK_SIZE, mask=key < seq_len, other=0)
            after = key + BOX
            next_page = gl.load(table + after // BLOCK_SIZE, mask=after < seq_len, other=0)
            first = page * BLOCK_SIZE + key % BLOCK_SIZE
            second = next_page * BLOCK_SIZE + after % BLOCK_SIZE
            slot = tile & 1
            parity = (gl.where(slot == 0, even, odd) & 1) ^ 1
            mbarrier.wait(left_free.index(slot), parity)
            mbarrier.expect(left_full.index(slot), ROWS * HALF * 2)
            fetch(rows_desc, first, second, 0, left_boxes, slot, left_full.index(slot), 4)
            mbarrier.wait(right_free.index(slot), parity)
            mbarrier.expect(right_full.index(slot), ROWS * (HALF + TURNED) * 2)
            fetch(rows_desc, first, second, HALF, right_boxes, slot, right_full.index(slot), 4)
            fetch(rows_desc, first, second, 2 * HALF, turned_boxes, slot, right_full.index(slot), 1)
            even += 1 - slot
            odd += slot
        at = until
        segment += 1


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
def unknown(number: gl.constexpr):
    """Return a number that the compiler does not know. It would compute all addresses of operands
    before the loop, where they do not fit registers; so it adds to a base."""
    zero = gl.inline_asm_elementwise("mov.u32 $0, 0;", "=r", [], gl.int32, is_pure=False, pack=1)
    return zero + number


@gluon.jit
def scored(rings, queries, bars, SLOT: gl.constexpr, turn, there):
    """Begin to score a tile, half by half as these come; return what to wait for."""
    slot = unknown(SLOT)
    first = unknown(0)
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    left, right, turned = rings
    q_left, q_right, q_turned = queries
    left_full, right_full, _left_free, _right_free, _ready, _q_full, _q_free, _summed = bars
    blank_MN = gl.zeros([HEADS, ROWS], gl.float32, SCORES)
    mbarrier.wait(left_full.index(slot), turn & 1)
    if there < ROWS:
        mbarrier.wait(right_full.index(slot), turn & 1)
        clear_tile(rings, slot, there)
    token = warpgroup_mma(
        q_left.index(first),
        left.index(slot).permute((1, 0)),
        blank_MN,
        use_acc=False,
        is_async=True,
    )
    mbarrier.wait(right_full.index(slot), turn & 1)
    token = warpgroup_mma(
        q_right.index(first), right.index(slot).permute((1, 0)), token, is_async=True
    )
    return warpgroup_mma(
        q_turned.index(first), turned.index(slot).permute((1, 0)), token, is_async=True
    )


@gluon.jit
def softened(scores_MN, sum_M, top_M, there, SCALE: gl.constexpr):
    """Return weights of a tile's first `there` rows, the new sum and the new maximum."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    row_N = gl.arange(0, ROWS, gl.SliceLayout(0, SCORES))
    scores_MN = gl.where((row_N < there)[None, :], scores_MN, float("-inf"))
    new_top_M = gl.maximum(top_M, gl.max(scores_MN, 1) * (SCALE * LOG2E))
    weights_MN = gl.exp2(scores_MN * (SCALE * LOG2E) - new_top_M[:, None])
    return weights_MN, sum_M * gl.exp2(top_M - new_top_M) + gl.sum(weights_MN, 1), new_top_M


@gluon.jit
def leave(weights_MN, top_M, turned, tops, slot: gl.constexpr, ready):
    """Leave a tile's weights and the maximum where both warpgroups find them."""
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    dtype: gl.constexpr = turned.dtype
    barrier()  # every warp has scored the tile, whose keys lie there
    turned.index(slot)._reinterpret(dtype, [HEADS, ROWS], WEIGHTS).store(weights_MN.to(dtype))
    tops.index(slot).store(top_M)
    fence_async_shared()
    barrier()
    mbarrier.arrive(ready.index(slot), count=1)


@gluon.jit
def mixing(acc_ML, shrink_M, half, turned, SLOT: gl.constexpr):
    """Begin to add a tile's half to what was mixed before; return what to wait for."""
    slot = unknown(SLOT)
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    acc_ML = acc_ML * gl.convert_layout(shrink_M, gl.SliceLayout(1, ACC))[:, None]
    weights = turned.index(slot)._reinterpret(turned.dtype, [HEADS, ROWS], WEIGHTS)
    return warpgroup_mma(weights, half.index(slot), acc_ML, is_async=True)


@gluon.jit
def mixed(token, free, slot: gl.constexpr):
    """Wait for `mixing`, give the tile's places back, and return what it made."""
    acc_ML = warpgroup_mma_wait(0, deps=(token,))
    barrier()
    for bar in gl.static_range(len(free)):
        mbarrier.arrive(free[bar].index(slot), count=1)
    return acc_ML


@gluon.jit
def finish(
    acc_ML, sum_M, top_M, at, until, request, begin, stop, segment, out_ptr, partial_ptr,
    stats_ptr, sums, bars, SIDE: gl.constexpr, NUM_HEADS: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """Add up both warpgroups' sums, and store half of a result, or of a piece."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    ALONG: gl.constexpr = gl.SliceLayout(1, ACC)
    q_free, summed = bars[6], bars[7]
    place = (segment & 1) * 2
    sums.index(place + SIDE).store(sum_M)
    barrier()
    mbarrier.arrive(summed.index(SIDE), count=1)
    mbarrier.wait(summed.index(1 - SIDE), segment & 1)
    # Parity tells a phase from the next alone, not from the one behind that. The other warpgroup
    # needs the next queries to come so far, and these need all warps of this one to be here.
    barrier()
    mbarrier.arrive(q_free, count=1)
    sum_M = gl.convert_layout(sum_M, ALONG) + sums.index(place + 1 - SIDE).load(ALONG)
    row_M = gl.program_id(0) * HEADS + gl.arange(0, HEADS, ALONG)
    channel_L = SIDE * HALF + gl.arange(0, HALF, gl.SliceLayout(0, ACC))
    if (at == begin) & (until == stop):
        y_ML = acc_ML / gl.where(sum_M > 0, sum_M, 1.0)[:, None]
        at_M = (request.to(gl.int64) * NUM_HEADS + row_M) * (2 * HALF)
        gl.store(out_ptr + at_M[:, None] + channel_L[None, :], y_ML.to(dtype))
    else:
        piece = (gl.program_id(1) * 2 + (at == begin).to(gl.int32)).to(gl.int64)
        at_M = piece * NUM_HEADS + row_M
        gl.store(partial_ptr + (at_M * (2 * HALF))[:, None] + channel_L[None, :], acc_ML)
        if SIDE == 0:
            gl.store(stats_ptr + at_M * 2, gl.convert_layout(top_M, ALONG))
            gl.store(stats_ptr + at_M * 2 + 1, sum_M)


@gluon.jit
def attend_first(
    out_ptr, partial_ptr, stats_ptr, seq_lens_ptr, num_reqs, rings, queries, tops, sums, bars,
    NUM_HEADS: gl.constexpr, SCALE: gl.constexpr, MIN_TILES: gl.constexpr, BLOCK_R: gl.constexpr,
):  # fmt: skip
    """Score the first tile of every pair, and mix the left half of both."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    ALONG: gl.constexpr = gl.SliceLayout(1, SCORES)
    left, _right, turned = rings
    _left_full, _right_full, left_free, right_free, ready, q_full, _q_free, _summed = bars
    both = (left_free, right_free)
    end_R, at, end = shares(seq_lens_ptr, num_reqs, MIN_TILES, BLOCK_R)
    segment = 0
    even = 0
    odd = 0
    while at < end:
        request, seq_len, begin, stop, until = locate(at, end, end_R, seq_lens_ptr)
        acc_ML = gl.zeros([HEADS, HALF], gl.float32, ACC)
        top_M = gl.full([HEADS], BOTTOM, gl.float32, ALONG)
        sum_M = gl.zeros([HEADS], gl.float32, ALONG)
        mbarrier.wait(q_full, segment & 1)
        for tile in range(at, until, 2):
            there = seq_len - (tile - begin) * ROWS
            token = scored(rings, queries, bars, 0, even, there)
            scores_MN = warpgroup_mma_wait(0, deps=(token,))
            last_M = top_M
            weights_MN, sum_M, top_M = softened(scores_MN, sum_M, last_M, there, SCALE)
            leave(weights_MN, top_M, turned, tops, 0, ready)
            token = mixing(acc_ML, gl.exp2(last_M - top_M), left, turned, 0)
            acc_ML = mixed(token, both, 0)
            even += 1
            if tile + 1 < until:
                mbarrier.wait(ready.index(1), odd & 1)
                last_M = top_M
                top_M = tops.index(1).load(ALONG)
                shrink_M = gl.exp2(last_M - top_M)
                sum_M = sum_M * shrink_M
                token = mixing(acc_ML, shrink_M, left, turned, 1)
                acc_ML = mixed(token, both, 1)
                odd += 1
        finish(
            acc_ML, sum_M, top_M, at, until, request, begin, stop, segment, out_ptr, partial_ptr,
            stats_ptr, sums, bars, 0, NUM_HEADS, left.dtype,
        )  # fmt: skip
        at = until
        segment += 1


@gluon.jit
def attend_second(
    out_ptr, partial_ptr, stats_ptr, seq_lens_ptr, num_reqs, rings, queries, tops, sums, bars,
    NUM_HEADS: gl.constexpr, SCALE: gl.constexpr, MIN_TILES: gl.constexpr, BLOCK_R: gl.constexpr,
):  # fmt: skip
    """Score the second tile of every pair, and mix the right half of both."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    ALONG: gl.constexpr = gl.SliceLayout(1, SCORES)
    _left, right, turned = rings
    _left_full, _right_full, _left_free, right_free, ready, q_full, _q_free, _summed = bars
    own = (right_free,)
    end_R, at, end = shares(seq_lens_ptr, num_reqs, MIN_TILES, BLOCK_R)
    segment = 0
    even = 0
    odd = 0
    while at < end:
        request, seq_len, begin, stop, until = locate(at, end, end_R, seq_lens_ptr)
        acc_ML = gl.zeros([HEADS, HALF], gl.float32, ACC)
        top_M = gl.full([HEADS], BOTTOM, gl.float32, ALONG)
        sum_M = gl.zeros([HEADS], gl.float32, ALONG)
        mbarrier.wait(q_full, segment & 1)
        for tile in range(at, until - 1, 2):
            there = seq_len - (tile + 1 - begin) * ROWS
            score = scored(rings, queries, bars, 1, odd, there)
            mbarrier.wait(ready.index(0), even & 1)
            first_M = tops.index(0).load(ALONG)
            shrink_M = gl.exp2(top_M - first_M)
            token = mixing(acc_ML, shrink_M, right, turned, 0)
            scores_MN = warpgroup_mma_wait(1, deps=(score,))
            weights_MN, sum_M, top_M = softened(scores_MN, sum_M * shrink_M, first_M, there, SCALE)
            leave(weights_MN, top_M, turned, tops, 1, ready)
            acc_ML = mixed(token, own, 0)
            token = mixing(acc_ML, gl.exp2(first_M - top_M), right, turned, 1)
            acc_ML = mixed(token, own, 1)
            even += 1
            odd += 1
        if ((until - at) & 1) == 1:  # a first tile without a second
            mbarrier.wait(ready.index(0), even & 1)
            first_M = tops.index(0).load(ALONG)
            shrink_M = gl.exp2(top_M - first_M)
            top_M = first_M
            sum_M = sum_M * shrink_M
            token = mixing(acc_ML, shrink_M, right, turned, 0)
            acc_ML = mixed(token, own, 0)
            even += 1
        finish(
            acc_ML, sum_M, top_M, at, until, request, begin, stop, segment, out_ptr, partial_ptr,
            stats_ptr, sums, bars, 1, NUM_HEADS, right.dtype,
        )  # fmt: skip
        at = until
        segment += 1


@gluon.jit
def barriers(count: gl.constexpr, arrivals: gl.constexpr):
    """Return barriers that so many arrivals complete."""
    found = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(count):
        mbarrier.init(found.index(i), count=arrivals)
    return found


@gluon.jit(do_not_specialize=["num_reqs", "table_stride"])
def latent_decode(
    out_ptr, wide_desc, q_desc, rows_desc, table_ptr, seq_lens_ptr,
    partial_ptr, stats_ptr, num_reqs, table_stride,
    NUM_HEADS: gl.constexpr, NOPE: gl.constexpr, BLOCK_SIZE: gl.constexpr, SCALE: gl.constexpr,
    MIN_TILES: gl.constexpr, BLOCK_R: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Grid: (NUM_HEADS / 64, programs).

    Args:
        wide_desc, q_desc: Tiles [64, 256] of wide and [64, 64] of q, both rows of heads.
        rows_desc: Tiles [32, 64] of the cache's rows.
        partial_ptr, stats_ptr: [programs * 2, NUM_HEADS, 512] and [.., 2] float32, scratch.
    """
    wait()
    dtype: gl.constexpr = wide_desc.dtype
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    TILES: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_left = gl.allocate_shared_memory(dtype, [1, HEADS, HALF], TILES)
    q_right = gl.allocate_shared_memory(dtype, [1, HEADS, HALF], TILES)
    q_turned = gl.allocate_shared_memory(dtype, [1, HEADS, TURNED], TILES)
    left = gl.allocate_shared_memory(dtype, [2, ROWS, HALF], TILES)
    right = gl.allocate_shared_memory(dtype, [2, ROWS, HALF], TILES)
    turned = gl.allocate_shared_memory(dtype, [2, ROWS, TURNED], TILES)
    tops = gl.allocate_shared_memory(gl.float32, [2, HEADS], PLAIN)
    sums = gl.allocate_shared_memory(gl.float32, [4, HEADS], PLAIN)
    left_full, right_full, ready = barriers(2, 1), barriers(2, 1), barriers(2, 1)
    left_free, right_free, summed = barriers(2, 1), barriers(2, 2), barriers(2, 1)
    q_full, q_free = barriers(1, 1).index(0), barriers(1, 2).index(0)
    fence_async_shared()
    barrier()
    rings = (left, right, turned)
    queries = (q_left, q_right, q_turned)
    bars = (left_full, right_full, left_free, right_free, ready, q_full, q_free, summed)
    gl.warp_specialize(
        [
            (attend_first, (out_ptr, partial_ptr, stats_ptr, seq_lens_ptr, num_reqs, rings,
                            queries, tops, sums, bars, NUM_HEADS, SCALE, MIN_TILES, BLOCK_R)),
            (attend_second, (out_ptr, partial_ptr, stats_ptr, seq_lens_ptr, num_reqs, rings,
                             queries, tops, sums, bars, NUM_HEADS, SCALE, MIN_TILES, BLOCK_R)),
            (bring, (wide_desc, q_desc, rows_desc, table_ptr, seq_lens_ptr, num_reqs, table_stride,
                     rings, queries, bars, NUM_HEADS, NOPE, BLOCK_SIZE, MIN_TILES, BLOCK_R)),
        ],
        [4, 4],
        [240, 40],
    )  # fmt: skip
