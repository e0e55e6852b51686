"""Decode attention over a paged cache, for sm_90: every warp has keys of its own, and a ring of
tiles is kept full from one request to the next.

A program takes a stretch of the list of all tiles (`stretches`). A tile has KEYS keys for each of
W warps. A warp scores its keys, makes weights of them and mixes their values without the others,
with a maximum and a sum of its own; warps meet where a request ends. Tiles are asked for some steps
ahead, those of the next request too, so the memory never waits for a result.

Keys and values are the first factors of products and take all of their rows; the heads that share
them are few, and are columns. Numbers of 8 bits become float16 (`narrow`). Queries are divided by a
power of two to fit it, and weights times scales of values by the largest such scale so far.

Triton's own layouts bring values of 8 bits byte by byte, and let warps wait for each other in every
tile. So this is Gluon, as `streamed` is.

Shape suffixes: W warps, N keys of a warp's tile, G heads of one KV head, D channels.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from hotshoe_cuda.kernels.narrow import (
    channel_of,
    in_order,
    joined,
    keys_at,
    products,
    turned,
    values_at,
)
from hotshoe_cuda.kernels.streamed import barrier, wait
from hotshoe_cuda.kernels.stretches import (
    BOTTOM,
    LOG2E,
    deliver,
    finish,
    first_tile,
    hint,
    meets,
    noted,
    onward,
    row_of,
    rows_of,
    shares,
    tiles_of,
    written,
)

#: By what weights are multiplied before they become float16: few are too small for it then.
LIFT = gl.constexpr(16384.0)
#: Columns of a product; a KV head has as many query heads, or fewer.
HEADS = gl.constexpr(8)


@gluon.constexpr_function
def copying(ring):
    """Return how threads copy rows of a tile, 16 bytes each: every warp its own keys."""
    at_once = 128 // ring.dtype.primitive_bitwidth
    lanes = ring.shape[3] // at_once
    return gl.BlockedLayout(
        [1, 1, at_once], [1, 32 // lanes, lanes], [ring.shape[1], 1, 1], [2, 1, 0]
    )


@gluon.jit
def key_at(
    tile, seq_len, W: gl.constexpr, KEYS: gl.constexpr, EACH: gl.constexpr, LAYOUT: gl.constexpr
):  # fmt: skip
    """Return the first EACH keys [W, N] of every warp in a tile. Behind a request's last key that
    comes again: what else lies there may be NaN, which no weight of 0 takes away."""
    key_W = tile * (W * KEYS) + gl.arange(0, W, gl.SliceLayout(1, LAYOUT)) * KEYS
    key_WN = key_W[:, None] + gl.arange(0, EACH, gl.SliceLayout(0, LAYOUT))[None, :]
    return gl.maximum(gl.minimum(key_WN, seq_len - 1), 0)


@gluon.jit
def ahead(
    k_ring, tile, seq_len, row_table_ptr, there, BLOCK_SIZE: gl.constexpr, SCALES: gl.constexpr
):  # fmt: skip
    """Return the pages of a tile's keys, for rows and for scales; page 0 where there are none."""
    W: gl.constexpr = k_ring.shape[1]
    KEYS: gl.constexpr = k_ring.shape[2]
    AT: gl.constexpr = gl.SliceLayout(2, copying(k_ring))
    ONE: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [W, 1], [1, 0])
    # Warps whose keys lie in one page look it up once.
    EACH: gl.constexpr = 1 if KEYS <= BLOCK_SIZE else KEYS
    there &= seq_len > 0
    pages_ptr = row_table_ptr + key_at(tile, seq_len, W, KEYS, EACH, AT) // BLOCK_SIZE
    pages_WN = gl.load(pages_ptr, mask=there, other=0)
    scale_pages_WN = pages_WN
    if SCALES == 2:
        scale_pages_ptr = row_table_ptr + key_at(tile, seq_len, W, KEYS, EACH, ONE) // BLOCK_SIZE
        scale_pages_WN = gl.load(scale_pages_ptr, mask=there, other=0)
    return pages_WN, scale_pages_WN


@gluon.jit
def ask(
    rings, planes, slot, tile, seq_len, pages_WN, scale_pages_WN, there, block_stride,
    HEAD_DIM: gl.constexpr, BLOCK_SIZE: gl.constexpr, SCALES: gl.constexpr,
):  # fmt: skip
    """Ask for a tile of a request."""
    k_ring, v_ring, k_scales, v_scales = rings
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr = planes
    W: gl.constexpr = k_ring.shape[1]
    KEYS: gl.constexpr = k_ring.shape[2]
    COPY: gl.constexpr = copying(k_ring)
    AT: gl.constexpr = gl.SliceLayout(2, COPY)
    key_WN = key_at(tile, seq_len, W, KEYS, KEYS, AT)
    rows_WN = pages_WN.to(gl.int64) * block_stride + key_WN % BLOCK_SIZE * HEAD_DIM
    channel_D = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, gl.SliceLayout(1, COPY)))
    offsets_WND = rows_WN[:, :, None] + channel_D[None, None, :]
    async_copy.async_copy_global_to_shared(k_ring.index(slot), k_ptr + offsets_WND, mask=there)
    async_copy.async_copy_global_to_shared(v_ring.index(slot), v_ptr + offsets_WND, mask=there)
    if SCALES == 2:
        ONE: gl.constexpr = scale_pages_WN.type.layout
        at_WN = key_at(tile, seq_len, W, KEYS, KEYS, ONE)
        of_WN = scale_pages_WN.to(gl.int64) * (block_stride // 4) + at_WN % BLOCK_SIZE
        k_scale_ptrs_WN, v_scale_ptrs_WN = k_scale_ptr + of_WN, v_scale_ptr + of_WN
        async_copy.async_copy_global_to_shared(k_scales.index(slot), k_scale_ptrs_WN, mask=there)
        async_copy.async_copy_global_to_shared(v_scales.index(slot), v_scale_ptrs_WN, mask=there)
    async_copy.commit_group()


@gluon.jit
def queries(
    q_ptr, k_scale_ptr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, NARROW: gl.constexpr,
    SCALE: gl.constexpr, SCALES: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Return a request's queries [W, D, G] as products take them, and the factor [W, G] of their
    scores in the base-2 domain."""
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    W: gl.constexpr = MMA.warps_per_cta[0]
    head_G = gl.arange(0, HEADS, gl.SliceLayout(0, gl.SliceLayout(1, B)))
    index_D = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, gl.SliceLayout(2, B)))
    warp_W = gl.arange(0, W, gl.SliceLayout(1, gl.SliceLayout(2, B)))
    channel_D = channel_of(index_D, HEAD_DIM, NARROW)
    offsets_WDG = (warp_W * 0)[:, None, None] + channel_D[None, :, None]
    offsets_WDG += head_G[None, None, :] * HEAD_DIM
    there_WDG = (channel_D >= 0)[None, :, None] & (head_G < GROUP)[None, None, :]
    q_WDG = gl.load(q_ptr + offsets_WDG, mask=there_WDG, other=0.0)
    unit_WG = gl.full([W, HEADS], 1.0, gl.float32, gl.SliceLayout(1, MMA))
    if NARROW and q_WDG.dtype != gl.float16:
        wide_WDG = q_WDG.to(gl.float32)
        power_WG = gl.max(gl.abs(wide_WDG), 1).to(gl.int32, bitcast=True) & 0x7F800000
        power_WG = gl.minimum(gl.maximum(power_WG, 64 << 23), 253 << 23)
        inverse_WG = ((254 << 23) - power_WG).to(gl.float32, bitcast=True)
        q_WDG = (wide_WDG * inverse_WG[:, None, :]).to(gl.float16)
        unit_WG = gl.convert_layout(power_WG.to(gl.float32, bitcast=True), gl.SliceLayout(1, MMA))
    unit_WG = unit_WG * (SCALE * LOG2E)
    if SCALES == 1:
        unit_WG = unit_WG * gl.load(k_scale_ptr)
    return q_WDG, unit_WG


@gluon.jit
def scored(
    q_WDG, unit_WG, rings, slot, key_WN, seq_len, SOFTCAP: gl.constexpr, WINDOW: gl.constexpr,
    SCALES: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Return a tile's scores [W, N, G] in the base-2 domain but for a factor, that factor, and
    which keys are seen."""
    W: gl.constexpr = rings[0].shape[1]
    KEYS: gl.constexpr = rings[0].shape[2]
    scores_WNG = gl.zeros([W, KEYS, HEADS], gl.float32, MMA)
    scores_WNG = mma_v2(keys_at(rings[0], slot, MMA), q_WDG, scores_WNG)
    if SCALES == 2:
        scores_WNG = scores_WNG * rings[2].index(slot).load(gl.SliceLayout(2, MMA))[:, :, None]
    factor_WG = unit_WG
    if SOFTCAP > 0:
        grown_WNG = gl.exp2(scores_WNG * (unit_WG * (2 / SOFTCAP))[:, None, :])
        scores_WNG = (1 - 2 / (grown_WNG + 1)) * (SOFTCAP * LOG2E)
        factor_WG = gl.full_like(unit_WG, 1.0)
    seen_WN = key_WN < seq_len
    if WINDOW > 0:
        seen_WN &= key_WN >= seq_len - WINDOW
    return gl.where(seen_WN[:, :, None], scores_WNG, float("-inf")), factor_WG, seen_WN


@gluon.jit
def mixed(
    acc_WDG, weights_WNG, shrink_WG, largest_W, seen_WN, rings, slot, SCALES: gl.constexpr,
    MMA: gl.constexpr,
):  # fmt: skip
    """Return weighted values with a tile's added, and the largest scale of values so far, a power
    of two: weights are multiplied by scales, and divided by that."""
    NARROW: gl.constexpr = rings[1].dtype.primitive_bitwidth == 8
    v_WDN = values_at(rings[1], slot, MMA)
    if SCALES == 2:
        scale_WN = rings[3].index(slot).load(gl.SliceLayout(2, MMA))
        last_W = largest_W
        seen_scale_WN = gl.where(seen_WN, scale_WN, 0.0)
        power_W = gl.max(seen_scale_WN, 1).to(gl.int32, bitcast=True) & 0x7F800000
        largest_W = gl.maximum(last_W, gl.minimum(power_W, 240 << 23).to(gl.float32, bitcast=True))
        inverse_W = ((254 << 23) - largest_W.to(gl.int32, bitcast=True)).to(
            gl.float32, bitcast=True
        )
        COLUMNS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(1, MMA))
        shrink_WG = shrink_WG * gl.convert_layout(last_W * inverse_W, COLUMNS)[:, None]
        weights_WNG = weights_WNG * (scale_WN * (inverse_W * LIFT)[:, None])[:, :, None]
    elif NARROW:
        weights_WNG = weights_WNG * LIFT
    weights_WNG = turned(weights_WNG.to(v_WDN.dtype), MMA)
    return mma_v2(v_WDN, weights_WNG, acc_WDG * shrink_WG[:, None, :]), largest_W


@gluon.jit
def together(
    acc_WDG, top_WG, sum_WNG, largest_W, v_scale_ptr, meeting, NARROW: gl.constexpr,
    SCALES: gl.constexpr,
):  # fmt: skip
    """Return what all warps have found: weighted values [G, D], maximum and sum [G]."""
    half, tops, sums = meeting
    W: gl.constexpr = acc_WDG.shape[0]
    BLOCK_D: gl.constexpr = acc_WDG.shape[1]
    size_WG = gl.full_like(top_WG, 1.0)
    if NARROW:
        size_WG = size_WG * (1 / LIFT)
    if SCALES == 1:
        size_WG = size_WG * gl.load(v_scale_ptr)
    if SCALES == 2:
        COLUMNS: gl.constexpr = gl.SliceLayout(1, top_WG.type.layout)
        size_WG = size_WG * gl.convert_layout(largest_W, COLUMNS)[:, None]
    acc_WDG = acc_WDG * size_WG[:, None, :]
    halves_WGD = acc_WDG.reshape([W, 2, BLOCK_D // 2, HEADS]).permute((0, 3, 2, 1))
    low_WGD, high_WGD = gl.split(halves_WGD)
    EACH: gl.constexpr = rows_of(W, W, BLOCK_D // 2)
    ALONG: gl.constexpr = gl.SliceLayout(2, EACH)
    tops.index(0).store(top_WG)
    sums.index(0).store(gl.sum(sum_WNG, 1))
    half.index(0).store(in_order(low_WGD, NARROW))
    top_WG = tops.index(0).load(ALONG)
    top_G = gl.max(top_WG, 0)
    shrink_WG = gl.exp2(top_WG - top_G[None, :])
    sum_G = gl.sum(sums.index(0).load(ALONG) * shrink_WG, 0)
    low_GD = gl.sum(half.index(0).load(EACH) * shrink_WG[:, :, None], 0)
    half.index(0).store(in_order(high_WGD, NARROW))
    high_GD = gl.sum(half.index(0).load(EACH) * shrink_WG[:, :, None], 0)
    acc_GD = joined(low_GD, high_GD, NARROW)
    ROWS: gl.constexpr = gl.SliceLayout(1, acc_GD.type.layout)
    return acc_GD, gl.convert_layout(top_G, ROWS), gl.convert_layout(sum_G, ROWS)


@gluon.jit
def opened(
    rings, lists, at, request, begin, BLOCK_SIZE: gl.constexpr, SCALES: gl.constexpr,
    WINDOW: gl.constexpr,
):  # fmt: skip
    """Return the first place of the rings, and what is asked for first: a tile of the list, the
    request that holds it, its length, where its tiles end, what the list's tiles need to become
    its own, and the pages of the tile's keys, which are looked up a step before."""
    table_ptr, table_stride, _starts_ptr, seq_lens_ptr, _block_stride = lists
    TILE: gl.constexpr = rings[0].shape[1] * rings[0].shape[2]
    seq_len = gl.load(seq_lens_ptr + request)
    stop = begin + tiles_of(seq_len, WINDOW, TILE)
    base = first_tile(seq_len, WINDOW, TILE) - begin
    pages_WN, scale_pages_WN = ahead(
        rings[0], at + base, seq_len, table_ptr + request.to(gl.int64) * table_stride, True,
        BLOCK_SIZE, SCALES,
    )  # fmt: skip
    return at * 0, (at, request, seq_len, stop, base, pages_WN, scale_pages_WN)


@gluon.jit
def feed(
    rings, planes, lists, slot, front, end,
    HEAD_DIM: gl.constexpr, BLOCK_SIZE: gl.constexpr, SCALES: gl.constexpr, UNIFORM: gl.constexpr,
    WINDOW: gl.constexpr,
):  # fmt: skip
    """Ask for the tile in front, look up the pages of the next one, and return that."""
    table_ptr, table_stride, starts_ptr, seq_lens_ptr, block_stride = lists
    at, request, seq_len, stop, base, pages_WN, scale_pages_WN = front
    TILE: gl.constexpr = rings[0].shape[1] * rings[0].shape[2]
    ask(rings, planes, slot, at + base, seq_len, pages_WN, scale_pages_WN, at < end, block_stride,
        HEAD_DIM, BLOCK_SIZE, SCALES)  # fmt: skip
    at += 1
    request, seq_len, stop, base = onward(
        at, end, request, seq_len, stop, base, starts_ptr, seq_lens_ptr, UNIFORM, WINDOW, TILE
    )
    row_table_ptr = table_ptr + request.to(gl.int64) * table_stride
    pages_WN, scale_pages_WN = ahead(
        rings[0], at + base, seq_len, row_table_ptr, at < end, BLOCK_SIZE, SCALES
    )
    return at, request, seq_len, stop, base, pages_WN, scale_pages_WN


@gluon.jit
def attend(
    q_WDG, unit_WG, rings, planes, lists, slot, front, first, last, end, seq_len,
    BLOCK_SIZE: gl.constexpr, SCALES: gl.constexpr, UNIFORM: gl.constexpr,
    WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Take a request's tiles first..last - 1 from the rings; return what each warp has found
    (values, maximum, weights, largest scale), and where the rings are then."""
    ALONG: gl.constexpr = gl.SliceLayout(2, MMA)
    STAGES: gl.constexpr = rings[0].shape[0]
    W: gl.constexpr = rings[0].shape[1]
    KEYS: gl.constexpr = rings[0].shape[2]
    HEAD_DIM: gl.constexpr = rings[0].shape[3]
    warp_W = gl.arange(0, W, gl.SliceLayout(1, ALONG))
    lane_WN = (warp_W * KEYS)[:, None] + gl.arange(0, KEYS, gl.SliceLayout(0, ALONG))[None, :]
    acc_WDG = gl.zeros([W, HEAD_DIM, HEADS], gl.float32, MMA)
    sum_WNG = gl.zeros([W, KEYS, HEADS], gl.float32, MMA)
    top_WG = gl.full([W, HEADS], BOTTOM, gl.float32, gl.SliceLayout(1, MMA))
    largest_W = gl.full([W], 2.0**-100, gl.float32, gl.SliceLayout(1, ALONG))
    for tile in range(first, last):
        async_copy.wait_group(STAGES - 2)
        free = gl.where(slot == 0, STAGES - 1, slot - 1)
        front = feed(
            rings, planes, lists, free, front, end, HEAD_DIM, BLOCK_SIZE, SCALES, UNIFORM, WINDOW
        )
        key_WN = tile * (W * KEYS) + lane_WN
        scores_WNG, factor_WG, seen_WN = scored(
            q_WDG, unit_WG, rings, slot, key_WN, seq_len, SOFTCAP, WINDOW, SCALES, MMA
        )
        new_top_WG = gl.maximum(top_WG, gl.max(scores_WNG, 1) * factor_WG)
        weights_WNG = gl.exp2(scores_WNG * factor_WG[:, None, :] - new_top_WG[:, None, :])
        shrink_WG = gl.exp2(top_WG - new_top_WG)
        sum_WNG = sum_WNG * shrink_WG[:, None, :] + weights_WNG
        top_WG = new_top_WG
        acc_WDG, largest_W = mixed(
            acc_WDG, weights_WNG, shrink_WG, largest_W, seen_WN, rings, slot, SCALES, MMA
        )
        slot = gl.where(slot == STAGES - 1, 0, slot + 1)
    return acc_WDG, top_WG, sum_WNG, largest_W, slot, front


@gluon.jit
def meeting_place(W: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Return where warps leave half of their values at once, their maxima and their sums."""
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    half = gl.allocate_shared_memory(gl.float32, [1, W, HEADS, HEAD_DIM // 2], ROWS)
    tops = gl.allocate_shared_memory(gl.float32, [1, W, HEADS], PLAIN)
    return half, tops, gl.allocate_shared_memory(gl.float32, [1, W, HEADS], PLAIN)


@gluon.jit
def places(
    dtype: gl.constexpr, STAGES: gl.constexpr, W: gl.constexpr, KEYS: gl.constexpr,
    HEAD_DIM: gl.constexpr, SCALES: gl.constexpr,
):  # fmt: skip
    """Return rings of tiles: keys, values, scales of keys, scales of values."""
    AT_ONCE: gl.constexpr = 128 // dtype.primitive_bitwidth
    PHASES: gl.constexpr = min(8, HEAD_DIM // AT_ONCE)
    TILES: gl.constexpr = gl.SwizzledSharedLayout(AT_ONCE, 8 // PHASES, PHASES, [2, 1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    k_ring = gl.allocate_shared_memory(dtype, [STAGES, W, KEYS, HEAD_DIM], TILES)
    v_ring = gl.allocate_shared_memory(dtype, [STAGES, W, KEYS, HEAD_DIM], TILES)
    k_scales = k_ring
    v_scales = v_ring
    if SCALES == 2:
        k_scales = gl.allocate_shared_memory(gl.float32, [STAGES, W, KEYS], PLAIN)
        v_scales = gl.allocate_shared_memory(gl.float32, [STAGES, W, KEYS], PLAIN)
    return k_ring, v_ring, k_scales, v_scales


@gluon.jit
def filled(
    rings, planes, lists, at, end, request, begin, page_R,
    HEAD_DIM: gl.constexpr, BLOCK_SIZE: gl.constexpr, SCALES: gl.constexpr, UNIFORM: gl.constexpr,
    WINDOW: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """Ask for the first tiles of a stretch; return the rings' place, what `opened` says of the
    first tile, and what is asked for next.

    With EARLY this is before the kernels in front have ended, and once more behind that if tiles
    lie in pages [R] that the step writes to.
    """
    STAGES: gl.constexpr = rings[0].shape[0]
    TILE: gl.constexpr = rings[0].shape[1] * rings[0].shape[2]
    place, front = opened(rings, lists, at, request, begin, BLOCK_SIZE, SCALES, WINDOW)
    _at, request, seq_len, stop, base, _pages, _scale_pages = front
    stale_R = page_R < -1
    for slot in gl.static_range(STAGES - 1):
        if EARLY:
            table_ptr = lists[0] + front[1].to(gl.int64) * lists[1]
            tile, pages = front[0] + front[4], gl.cdiv(front[2], BLOCK_SIZE)
            stale_R |= meets(page_R, table_ptr, tile, gl.where(front[0] < end, pages, 0), TILE,
                             BLOCK_SIZE)  # fmt: skip
        front = feed(
            rings, planes, lists, slot, front, end, HEAD_DIM, BLOCK_SIZE, SCALES, UNIFORM, WINDOW
        )
    if EARLY:
        stale = gl.max(stale_R.to(gl.int32), 0) > 0
        wait()
        if stale:
            async_copy.wait_group(0)
            place, front = opened(rings, lists, at, request, begin, BLOCK_SIZE, SCALES, WINDOW)
            for slot in gl.static_range(STAGES - 1):
                front = feed(rings, planes, lists, slot, front, end, HEAD_DIM, BLOCK_SIZE, SCALES,
                             UNIFORM, WINDOW)  # fmt: skip
    return place, request, seq_len, stop, base, front


@gluon.jit
def walk(
    out_ptr, q_ptr, sinks_ptr, partial_ptr, stats_ptr, rings, planes, lists, at, end, request,
    begin, q_stride, page_R,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    SCALE: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, SINKS: gl.constexpr,
    SCALES: gl.constexpr, UNIFORM: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """Compute the tiles at..end - 1 of the list; return the pieces of requests at both ends:
    request, row, and where its tiles begin and end, which is the same where there is none."""
    k_ring = rings[0]
    MMA: gl.constexpr = products(k_ring.shape[1])
    NARROW: gl.constexpr = k_ring.dtype.primitive_bitwidth == 8
    TILE: gl.constexpr = k_ring.shape[1] * k_ring.shape[2]
    kv_head, program = gl.program_id(0), gl.program_id(1)
    place, request, seq_len, stop, base, front = filled(
        rings, planes, lists, at, end, request, begin, page_R, HEAD_DIM, BLOCK_SIZE, SCALES,
        UNIFORM, WINDOW, EARLY,
    )  # fmt: skip
    meeting = meeting_place(k_ring.shape[1], HEAD_DIM)
    first = (request, request.to(gl.int64), begin, begin)
    last = first
    while at < end:
        row = row_of(request, lists[2], UNIFORM)
        until = gl.minimum(stop, end)
        q_WDG, unit_WG = queries(
            q_ptr + row * q_stride + kv_head * (GROUP * HEAD_DIM), planes[2], GROUP,
            HEAD_DIM, NARROW, SCALE, SCALES, MMA,
        )  # fmt: skip
        acc_WDG, top_WG, sum_WNG, largest_W, place, front = attend(
            q_WDG, unit_WG, rings, planes, lists, place, front, at + base, until + base, end,
            seq_len, BLOCK_SIZE, SCALES, UNIFORM, WINDOW, SOFTCAP, MMA,
        )  # fmt: skip
        acc_GD, top_G, sum_G = together(
            acc_WDG, top_WG, sum_WNG, largest_W, planes[3], meeting, NARROW, SCALES
        )
        begins, whole = at == begin, (at == begin) & (until == stop)
        finish(
            acc_GD, top_G, sum_G, whole, begins, row, program * 2 + begins.to(gl.int32), kv_head,
            out_ptr, sinks_ptr, partial_ptr, stats_ptr, NUM_HEADS, GROUP, HEAD_DIM, SINKS,
        )  # fmt: skip
        piece = (request, row, begin, stop)
        first, last = noted(first, at != begin, piece), noted(last, begins & (until < stop), piece)
        at = until
        begin = at
        request, seq_len, stop, base = onward(
            at, end, request, seq_len, stop, base, lists[2], lists[3], UNIFORM, WINDOW, TILE
        )
    return first, last


@gluon.jit(do_not_specialize=["num_reqs", "table_stride"])
def decode_attention(
    out_ptr, q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, starts_ptr, seq_lens_ptr,
    sinks_ptr, slots_ptr, partial_ptr, stats_ptr, counter_ptr,
    num_reqs, q_stride, table_stride, block_stride,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, SCALE: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr,
    SINKS: gl.constexpr, SCALES: gl.constexpr, UNIFORM: gl.constexpr, MIN_TILES: gl.constexpr,
    KEYS: gl.constexpr, STAGES: gl.constexpr, BLOCK_G: gl.constexpr, BLOCK_R: gl.constexpr,
    BLOCK_P: gl.constexpr, EARLY: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Grid: (num_kv_heads, programs).

    Args:
        partial_ptr: [programs * 2, num_kv_heads, GROUP, HEAD_DIM] float32, scratch.
        stats_ptr: [programs * 2, num_kv_heads, GROUP, 2] float32, scratch.
        counter_ptr: [num_reqs, num_kv_heads] int32, zero before and after.
        slots_ptr: [num_reqs] int32, the slots that the step writes; read with EARLY alone.
        KEYS: Of a warp's tile.
    """
    kv_head = gl.program_id(0)
    rings = places(k_ptr.dtype.element_ty, STAGES, num_warps, KEYS, HEAD_DIM, SCALES)
    plane = kv_head.to(gl.int64) * (BLOCK_SIZE * HEAD_DIM)
    scales = kv_head * (BLOCK_SIZE if SCALES == 2 else 0)
    planes = (k_ptr + plane, v_ptr + plane, k_scale_ptr + scales, v_scale_ptr + scales)
    lists = (table_ptr, table_stride, starts_ptr, seq_lens_ptr, block_stride)
    page_R = gl.full([1], 0, gl.int32, gl.BlockedLayout([1], [32], [num_warps], [0]))
    if EARLY:
        page_R = written(slots_ptr, num_reqs, BLOCK_SIZE, BLOCK_R)
    else:
        hint(seq_lens_ptr, num_reqs)
        hint(table_ptr, num_reqs * table_stride)
        wait()
    size, at, end, request, begin = shares(
        starts_ptr, seq_lens_ptr, num_reqs, UNIFORM, WINDOW, num_warps * KEYS, MIN_TILES, BLOCK_R
    )
    if at < end:
        first, last = walk(
            out_ptr, q_ptr, sinks_ptr, partial_ptr, stats_ptr, rings, planes, lists, at, end,
            request, begin, q_stride, page_R, NUM_HEADS, GROUP, HEAD_DIM, BLOCK_SIZE, SCALE, WINDOW,
            SOFTCAP, SINKS, SCALES, UNIFORM, EARLY,
        )  # fmt: skip
        barrier()
        for i in range(2):
            request, row, begin, stop = noted(first, i == 1, last)
            if begin < stop:
                deliver(
                    request, row, begin, stop, size, kv_head, out_ptr, partial_ptr, stats_ptr,
                    counter_ptr, NUM_HEADS, GROUP, HEAD_DIM, BLOCK_G, BLOCK_P,
                )  # fmt: skip
    elif EARLY:
        wait()
