"""Attention of prompts over a paged cache, for sm_90: warpgroups multiply, one more warp fetches.

A program takes a tile of rows (query heads of one KV head, for neighboring tokens), 64 for each of
CONSUMERS warpgroups. One warp more asks the copy engine for keys and values, page by page. A
warpgroup begins the scores of a tile of keys and the values of the tile before together, and makes
weights of the scores while the values are multiplied; where one warpgroup makes weights, the others
multiply. Places of a tile's keys and of the values of the tile before are given back together. A
thread adds up what it has of a row, and threads meet behind the last tile.

Triton cannot say who does what, so this is Gluon, as `streamed` is. Which request a tile belongs
to, and which keys it sees, is found as in the portable `prefill`.

Shape suffixes: M rows of a warpgroup, N keys of a tile, G groups of keys, D channels.
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

LOG2E = gl.constexpr(1.4426950408889634)
BOTTOM = gl.constexpr(-1.0e30)
#: Rows of a warpgroup, and channels that the copy engine brings at once.
ROWS, PANEL = gl.constexpr(64), gl.constexpr(64)


@gluon.jit
def request_of_tile(tile, starts_ptr, num_reqs, BLOCK_Q: gl.constexpr):
    """Return the last request whose first tile is at or before this one."""
    found, beyond = num_reqs * 0, num_reqs
    while beyond - found > 1:
        middle = (found + beyond) // 2
        here = gl.load(starts_ptr + middle) // BLOCK_Q + middle <= tile
        found, beyond = gl.where(here, middle, found), gl.where(here, beyond, middle)
    return found


@gluon.jit
def keys_of(first_pos, last_pos, WINDOW: gl.constexpr, BLOCK_N: gl.constexpr):
    """Return bounds of the tiles of keys that queries at first_pos..last_pos see: low..full_low and
    full_high..high need a mask."""
    high = last_pos // BLOCK_N + 1
    low = first_pos * 0
    full_low = low
    if WINDOW > 0:
        low = gl.maximum(first_pos - WINDOW + 1, 0) // BLOCK_N
        full_low = gl.minimum(gl.cdiv(gl.maximum(last_pos - WINDOW + 1, 0), BLOCK_N), high)
    return low, full_low, gl.maximum((first_pos + 1) // BLOCK_N, full_low), high


@gluon.jit
def pages_of(
    first_key, there, seq_len, table_ptr,
    BLOCK_SIZE: gl.constexpr, BLOCK_N: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """Return the block in which each box of a tile lies, one number for each."""
    pages = ()
    for piece in gl.static_range(BLOCK_N // BOX):
        key = first_key + piece * BOX
        page = gl.load(table_ptr + key // BLOCK_SIZE, mask=there & (key < seq_len), other=0)
        pages = pages + (page,)  # noqa: RUF005
    return pages


@gluon.jit
def fetch(
    desc, boxes, slot, bar, pages, first_key, there, first_row, page_rows,
    BLOCK_SIZE: gl.constexpr, PANELS: gl.constexpr,
):  # fmt: skip
    """Ask for a tile, box by box and panel by panel."""
    PIECES: gl.constexpr = len(pages)
    BOX: gl.constexpr = desc.block_type.shape[0]
    ITEM: gl.constexpr = desc.dtype.primitive_bitwidth // 8
    mbarrier.expect(bar, PIECES * BOX * PANELS * PANEL * ITEM, pred=there)
    for piece in gl.static_range(PIECES):
        row = pages[piece] * page_rows + first_row + (first_key + piece * BOX) % BLOCK_SIZE
        for panel in gl.static_range(PANELS):
            box = boxes.index((slot * PANELS + panel) * PIECES + piece)
            tma.async_copy_global_to_shared(desc, [row, panel * PANEL], bar, box, pred=there)


@gluon.jit
def following(slot, phase, STAGES: gl.constexpr):
    """Return the next place of a ring, and the phase of its barriers."""
    slot = gl.where(slot == STAGES - 1, 0, slot + 1)
    return slot, gl.where(slot == 0, phase ^ 1, phase)


@gluon.jit
def bring(
    k_desc, v_desc, rings, bounds, table_ptr, rows, page_rows, BLOCK_SIZE: gl.constexpr
):  # fmt: skip
    """Ask for keys of tile i and values of tile i - 1, step by step, as places become free.

    Blocks of the next step are looked up behind what a step asks for, all at once, so that no
    request waits for a look.
    """
    k_ring, v_ring, bars = rings
    k_full, v_full, free = bars
    low, _full_low, _full_high, count = bounds
    kv_head, _token, _queries, _first_pos, seq_len, _cell = rows
    first_row = kv_head * BLOCK_SIZE
    STAGES: gl.constexpr = k_ring.shape[0]
    BLOCK_N: gl.constexpr = k_ring.shape[1]
    PANELS: gl.constexpr = k_ring.shape[2] // PANEL
    BOX: gl.constexpr = k_desc.block_type.shape[0]
    BOXES: gl.constexpr = STAGES * PANELS * (BLOCK_N // BOX)
    k_boxes = k_ring._reinterpret(k_desc.dtype, [BOXES, BOX, PANEL], k_desc.layout)
    v_boxes = v_ring._reinterpret(v_desc.dtype, [BOXES, BOX, PANEL], v_desc.layout)
    key = low * BLOCK_N
    pages = pages_of(key, count > 0, seq_len, table_ptr, BLOCK_SIZE, BLOCK_N, BOX)
    # A call of its own: what begins as another value does is not carried through the loop.
    last_pages = pages_of(key, False, seq_len, table_ptr, BLOCK_SIZE, BLOCK_N, BOX)
    for i in range(count + 1):
        k_slot, v_slot = i % STAGES, (i + STAGES - 1) % STAGES
        key = (low + i) * BLOCK_N
        mbarrier.wait(free.index(k_slot), ((i // STAGES) & 1) ^ 1)
        fetch(
            k_desc, k_boxes, k_slot, k_full.index(k_slot), pages, key, i < count, first_row,
            page_rows, BLOCK_SIZE, PANELS,
        )  # fmt: skip
        fetch(
            v_desc, v_boxes, v_slot, v_full.index(v_slot), last_pages, key - BLOCK_N, i > 0,
            first_row, page_rows, BLOCK_SIZE, PANELS,
        )  # fmt: skip
        last_pages = pages
        key += BLOCK_N
        pages = pages_of(key, i + 1 < count, seq_len, table_ptr, BLOCK_SIZE, BLOCK_N, BOX)


@gluon.jit
def clear_behind(v_ring, slot, there, BOX: gl.constexpr):
    """Put zeros where a tile has no values: anything may lie there, NaN too."""
    STAGES: gl.constexpr = v_ring.shape[0]
    BLOCK_N: gl.constexpr = v_ring.shape[1]
    PANELS: gl.constexpr = v_ring.shape[2] // PANEL
    PIECES: gl.constexpr = BLOCK_N // BOX
    BOXES: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    PLAIN: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    dtype: gl.constexpr = v_ring.dtype
    boxes = v_ring._reinterpret(dtype, [STAGES * PANELS * PIECES, BOX, PANEL], BOXES)
    row_N = gl.arange(0, BOX, gl.SliceLayout(1, PLAIN))
    for piece in range(there // BOX, PIECES):
        for panel in gl.static_range(PANELS):
            box = boxes.index((slot * PANELS + panel) * PIECES + piece)
            rows_ND = box.load(PLAIN)
            here_N = row_N < there - piece * BOX
            box.store(gl.where(here_N[:, None], rows_ND, gl.zeros_like(rows_ND)))
    fence_async_shared()
    barrier()


@gluon.jit
def scored(q_tile, k_tile, REST: gl.constexpr):
    """Begin to score a tile; return what to wait for. REST: channels behind the first half."""
    BLOCK_N: gl.constexpr = k_tile.shape[0]
    HALF: gl.constexpr = k_tile.shape[1] // 2
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    blank_MN = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    if REST == HALF:
        token = warpgroup_mma(
            q_tile, k_tile.permute((1, 0)), blank_MN, use_acc=False, is_async=True
        )
    else:  # what is padded beyond that is left out
        first, last = k_tile.slice(0, HALF, dim=1), k_tile.slice(HALF, REST, dim=1)
        token = warpgroup_mma(
            q_tile.slice(0, HALF, dim=1), first.permute((1, 0)), blank_MN, use_acc=False,
            is_async=True,
        )  # fmt: skip
        token = warpgroup_mma(
            q_tile.slice(HALF, REST, dim=1), last.permute((1, 0)), token, is_async=True
        )
    return token


@gluon.jit
def capped(scores_MN, SCALE: gl.constexpr, SOFTCAP: gl.constexpr):
    """Return scores in the base-2 domain but for a factor, and that factor."""
    if SOFTCAP > 0:
        tanh_MN = gl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=r,r", [scores_MN * (SCALE / SOFTCAP)], gl.float32,
            is_pure=True, pack=1,
        )  # fmt: skip
        factor: gl.constexpr = SOFTCAP * LOG2E
    else:
        tanh_MN = scores_MN
        factor: gl.constexpr = SCALE * LOG2E
    return tanh_MN, factor


@gluon.jit
def softened(
    scores_MN, top_M, position_M, tile, bounds, SCALE: gl.constexpr, SOFTCAP: gl.constexpr,
    WINDOW: gl.constexpr, SCORES: gl.constexpr,
):  # fmt: skip
    """Return a tile's weights, the new maximum, and by what earlier weights shrink."""
    BLOCK_N: gl.constexpr = scores_MN.shape[1]
    scores_MN, factor = capped(scores_MN, SCALE, SOFTCAP)
    _low, full_low, full_high, _count = bounds
    if (tile < full_low) | (tile >= full_high):
        key_N = tile * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, SCORES))
        seen_MN = key_N[None, :] <= position_M[:, None]
        if WINDOW > 0:
            seen_MN &= key_N[None, :] > position_M[:, None] - WINDOW
        scores_MN = gl.where(seen_MN, scores_MN, float("-inf"))
    highest_M = gl.max(gl.max(grouped(scores_MN), 1), 1)
    highest_M = gl.convert_layout(highest_M, gl.SliceLayout(1, SCORES), assert_trivial=True)
    new_top_M = gl.maximum(top_M, highest_M * factor)
    weights_MN = gl.exp2(scores_MN * factor - new_top_M[:, None])
    return weights_MN, new_top_M, gl.exp2(top_M - new_top_M)


@gluon.jit
def grouped(x_MN):
    """Return [M, N / G, G] for G = 8: what a thread has of a row lies along the second dimension,
    so that sums and maxima along it need no other thread."""
    return x_MN.reshape([x_MN.shape[0], x_MN.shape[1] // 8, 8])


@gluon.jit
def added(sum_MG, shrink_M, weights_MN):
    """Return sums of a row's groups with a tile's weights, as earlier ones have shrunk."""
    earlier_M = gl.convert_layout(shrink_M, gl.SliceLayout(1, sum_MG.type.layout))
    return sum_MG * earlier_M[:, None] + gl.sum(grouped(weights_MN), 1)


@gluon.jit
def attend(
    q_ptrs_MD, there_MD, q_tile, rings, position_M, top_M, bounds, seq_len,
    BOX: gl.constexpr, SCALE: gl.constexpr, SOFTCAP: gl.constexpr, WINDOW: gl.constexpr,
    REST: gl.constexpr,
):  # fmt: skip
    """Return what a warpgroup's rows make of the tiles low..low + count - 1: acc, top, sum."""
    k_ring, v_ring, bars = rings
    k_full, v_full, free = bars
    low, _full_low, _full_high, count = bounds
    STAGES: gl.constexpr = k_ring.shape[0]
    BLOCK_N: gl.constexpr = k_ring.shape[1]
    BLOCK_D: gl.constexpr = k_ring.shape[2]
    dtype: gl.constexpr = k_ring.dtype
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    ALONG: gl.constexpr = gl.SliceLayout(1, ACC)
    q_tile.store(gl.load(q_ptrs_MD, mask=there_MD, other=0.0))
    fence_async_shared()
    barrier()
    acc_MD = gl.zeros([ROWS, BLOCK_D], gl.float32, ACC)
    sum_M = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    if count > 0:
        mbarrier.wait(k_full.index(0), 0)
        scores_MN = warpgroup_mma_wait(0, deps=(scored(q_tile, k_ring.index(0), REST),))
        barrier()
        mbarrier.arrive(free.index(0), count=1)
        weights_MN, top_M, _ = softened(
            scores_MN, top_M, position_M, low, bounds, SCALE, SOFTCAP, WINDOW, SCORES
        )
        sum_MG = gl.sum(grouped(weights_MN), 1)
        weights_MN = gl.convert_layout(weights_MN.to(dtype), WEIGHTS)
        mbarrier.wait(k_full.index(1 % STAGES), (1 // STAGES) & 1, pred=count > 1)
        slot, phase, last, last_phase = 1 % STAGES, 1 // STAGES, 0, 0
        for tile in range(low + 1, low + count):
            score = scored(q_tile, k_ring.index(slot), REST)
            mbarrier.wait(v_full.index(last), last_phase)
            mixed = warpgroup_mma(weights_MN, v_ring.index(last), acc_MD, is_async=True)
            scores_MN = warpgroup_mma_wait(1, deps=(score,))
            new_MN, top_M, shrink_M = softened(
                scores_MN, top_M, position_M, tile, bounds, SCALE, SOFTCAP, WINDOW, SCORES
            )
            sum_MG = added(sum_MG, shrink_M, new_MN)
            # Weights come before what mixes is waited for: the compiler moves nothing over this.
            last, last_phase = slot, phase
            slot, phase = following(slot, phase, STAGES)
            mbarrier.wait(k_full.index(slot), phase, pred=tile + 1 < low + count)
            acc_MD, new_MN = warpgroup_mma_wait(0, deps=(mixed, new_MN))
            barrier()
            mbarrier.arrive(free.index(last), count=1)
            acc_MD = acc_MD * gl.convert_layout(shrink_M, ALONG)[:, None]
            weights_MN = gl.convert_layout(new_MN.to(dtype), WEIGHTS)
        mbarrier.wait(v_full.index(last), last_phase)
        there = seq_len - (low + count - 1) * BLOCK_N
        if there < BLOCK_N:
            clear_behind(v_ring, last, there, BOX)
        mixed = warpgroup_mma(weights_MN, v_ring.index(last), acc_MD, is_async=True)
        acc_MD = warpgroup_mma_wait(0, deps=(mixed,))
        sum_M = gl.convert_layout(gl.sum(sum_MG, 1), gl.SliceLayout(1, SCORES))
    return acc_MD, top_M, sum_M


@gluon.jit
def joined(acc_MD, top_M, sum_M, scratch, cell, ACROSS: gl.constexpr, ACC: gl.constexpr):
    """Leave what a warpgroup found; return whether it is the last, and what all parts found."""
    BLOCK_D: gl.constexpr = acc_MD.shape[1]
    partial_ptr, stats_ptr, counter_ptr = scratch
    part, parts = gl.program_id(2), gl.num_programs(2)
    row_M = gl.arange(0, ROWS, ACROSS)
    cell_MD = row_M[:, None] * BLOCK_D + gl.arange(0, BLOCK_D, gl.SliceLayout(0, ACC))[None, :]
    partial_ptr += cell.to(gl.int64) * parts * (ROWS * BLOCK_D)
    stats_ptr += cell * parts * (2 * ROWS)
    gl.store(partial_ptr + part * (ROWS * BLOCK_D) + cell_MD, acc_MD)
    gl.store(stats_ptr + part * (2 * ROWS) + row_M, gl.convert_layout(top_M, ACROSS))
    gl.store(stats_ptr + part * (2 * ROWS) + ROWS + row_M, sum_M)
    last = last_to_arrive(counter_ptr + cell, parts)
    if last:
        acc_MD = gl.zeros_like(acc_MD)
        sum_M = gl.zeros_like(sum_M)
        new_M = gl.full([ROWS], BOTTOM, gl.float32, ACROSS)
        for other in range(parts):
            rows_ptr = stats_ptr + other * (2 * ROWS)
            found_M = gl.load(rows_ptr + row_M, cache_modifier=".cg")
            old_M = new_M
            new_M = gl.maximum(old_M, found_M)
            shrink_M, factor_M = gl.exp2(old_M - new_M), gl.exp2(found_M - new_M)
            others_M = gl.load(rows_ptr + ROWS + row_M, cache_modifier=".cg")
            sum_M = sum_M * shrink_M + others_M * factor_M
            piece_ptr = partial_ptr + other * (ROWS * BLOCK_D)
            piece_MD = gl.load(piece_ptr + cell_MD, cache_modifier=".cg")
            acc_MD = acc_MD * shrink_M[:, None] + piece_MD * factor_M[:, None]
    return last, acc_MD, sum_M


@gluon.jit
def consume(
    tensors, scratch, q_tiles, rings, rows, bounds, SIDE: gl.constexpr, NUM_HEADS: gl.constexpr,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr, BOX: gl.constexpr,
    SCALE: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, SINKS: gl.constexpr,
    REST: gl.constexpr,
):  # fmt: skip
    """Compute one warpgroup's rows and store them."""
    BLOCK_Q: gl.constexpr = CONSUMERS * ROWS // GROUP
    out_ptr, q_ptr, sinks_ptr, q_stride = tensors
    k_ring, _v_ring, _bars = rings
    kv_head, token, queries, first_pos, seq_len, cell = rows
    BLOCK_N: gl.constexpr = k_ring.shape[1]
    BLOCK_D: gl.constexpr = k_ring.shape[2]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    ALONG: gl.constexpr = gl.SliceLayout(1, SCORES)
    ACROSS: gl.constexpr = gl.SliceLayout(1, ACC)
    LANES: gl.constexpr = BLOCK_D // 8
    PLAIN: gl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [4, 1], [1, 0])
    # The rows that are loaded, that are scored, and that are stored have layouts of their own.
    row_M = SIDE * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, PLAIN))
    there_M = (row_M // GROUP < BLOCK_Q) & (row_M // GROUP < queries)
    channel_D = gl.arange(0, BLOCK_D, gl.SliceLayout(0, PLAIN))
    at_M = (token + row_M // GROUP).to(gl.int64) * q_stride
    at_M += (kv_head * GROUP + row_M % GROUP) * HEAD_DIM
    q_ptrs_MD = q_ptr + at_M[:, None] + channel_D[None, :]
    there_MD = there_M[:, None] & (channel_D < HEAD_DIM)[None, :]
    row_M = SIDE * ROWS + gl.arange(0, ROWS, ALONG)
    here_M = (row_M // GROUP < BLOCK_Q) & (row_M // GROUP < queries)
    position_M = gl.where(here_M, first_pos + row_M // GROUP, -1)
    top_M = gl.full([ROWS], BOTTOM, gl.float32, ALONG)
    if SINKS and gl.program_id(2) == 0:
        head_M = kv_head * GROUP + row_M % GROUP
        top_M = gl.load(sinks_ptr + head_M, mask=here_M, other=0.0) * LOG2E
    sink_M = top_M
    acc_MD, top_M, sum_M = attend(
        q_ptrs_MD, there_MD, q_tiles.index(SIDE), rings, position_M, top_M, bounds, seq_len,
        BOX, SCALE, SOFTCAP, WINDOW, REST,
    )  # fmt: skip
    if SINKS and gl.program_id(2) == 0:
        sum_M += gl.exp2(sink_M - top_M)
    sum_M = gl.convert_layout(sum_M, ACROSS)
    last = queries > 0
    if gl.num_programs(2) > 1:
        last, acc_MD, sum_M = joined(
            acc_MD, top_M, sum_M, scratch, cell * CONSUMERS + SIDE, ACROSS, ACC
        )
    y_MD = acc_MD * (1.0 / gl.where(sum_M > 0, sum_M, 1.0))[:, None]
    row_M = SIDE * ROWS + gl.arange(0, ROWS, ACROSS)
    there_M = (row_M // GROUP < BLOCK_Q) & (row_M // GROUP < queries) & last
    channel_D = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ACC))
    at_M = (token + row_M // GROUP).to(gl.int64) * NUM_HEADS + kv_head * GROUP + row_M % GROUP
    out_ptrs_MD = out_ptr + (at_M * HEAD_DIM)[:, None] + channel_D[None, :]
    there_MD = there_M[:, None] & (channel_D < HEAD_DIM)[None, :]
    gl.store(out_ptrs_MD, y_MD.to(k_ring.dtype), mask=there_MD)


@gluon.jit
def rings_of(
    dtype: gl.constexpr, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Return places for queries, keys and values, and barriers that tell when these have come, and
    when they are read."""
    TILES: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_tiles = gl.allocate_shared_memory(dtype, [CONSUMERS, ROWS, BLOCK_D], TILES)
    k_ring = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, BLOCK_D], TILES)
    v_ring = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, BLOCK_D], TILES)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=CONSUMERS)
    fence_async_shared()
    return q_tiles, (k_ring, v_ring, (k_full, v_full, free))


@gluon.jit
def work_of(
    starts_ptr, seq_lens_ptr, num_reqs, BLOCK_Q: gl.constexpr, BLOCK_N: gl.constexpr,
    WINDOW: gl.constexpr,
):  # fmt: skip
    """Return this program's request, its rows (KV head, first token, queries, position of the
    first, the request's length, place to meet), and its tiles of keys."""
    kv_head = gl.program_id(0)
    tile = gl.num_programs(1) - 1 - gl.program_id(1)
    request = request_of_tile(tile, starts_ptr, num_reqs, BLOCK_Q)
    start = gl.load(starts_ptr + request)
    num_queries = gl.load(starts_ptr + request + 1) - start
    first_query = (tile - start // BLOCK_Q - request) * BLOCK_Q
    seq_len = gl.load(seq_lens_ptr + request)
    # Requests of one query are the decode kernel's; where nothing is left to do, nothing is seen.
    queries = gl.where(num_queries > 1, num_queries - first_query, 0)
    first_pos = seq_len - num_queries + first_query
    last_pos = gl.minimum(first_pos + BLOCK_Q, seq_len) - 1
    low, full_low, full_high, high = keys_of(first_pos, last_pos, WINDOW, BLOCK_N)
    share = gl.cdiv(high - low, gl.num_programs(2))
    low += gl.program_id(2) * share
    count = gl.where(queries > 0, gl.maximum(gl.minimum(low + share, high) - low, 0), 0)
    cell = tile * gl.num_programs(0) + kv_head
    rows = (kv_head, start + first_query, queries, first_pos, seq_len, cell)
    return request, rows, (low, full_low, full_high, count)


@gluon.jit(do_not_specialize=["num_reqs", "table_stride", "page_rows"])
def prompt_attention(
    out_ptr, q_ptr, k_desc, v_desc, table_ptr, starts_ptr, seq_lens_ptr, sinks_ptr,
    partial_ptr, stats_ptr, counter_ptr, num_reqs, q_stride, table_stride, page_rows,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, SCALE: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr,
    SINKS: gl.constexpr, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_D: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Grid: (num_kv_heads, num_tokens // BLOCK_Q + num_reqs, parts), as the portable kernel's.

    Args:
        k_desc, v_desc: Tiles [min(BLOCK_SIZE, BLOCK_N), 64] of rows of HEAD_DIM channels.
        partial_ptr, stats_ptr: [tiles, num_kv_heads, CONSUMERS, parts, 64, BLOCK_D] and
            [.., 2, 64] float32, scratch.
        counter_ptr: [tiles, num_kv_heads, CONSUMERS] int32, zero before and after.
        page_rows: Such rows from block to block.
    """
    BLOCK_Q: gl.constexpr = CONSUMERS * ROWS // GROUP
    BOX: gl.constexpr = k_desc.block_type.shape[0]
    q_tiles, rings = rings_of(k_desc.dtype, CONSUMERS, BLOCK_N, BLOCK_D, STAGES)
    wait()
    request, rows, bounds = work_of(starts_ptr, seq_lens_ptr, num_reqs, BLOCK_Q, BLOCK_N, WINDOW)
    table_ptr += request.to(gl.int64) * table_stride
    tensors = (out_ptr, q_ptr, sinks_ptr, q_stride)
    scratch = (partial_ptr, stats_ptr, counter_ptr)
    fetching = (k_desc, v_desc, rings, bounds, table_ptr, rows, page_rows, BLOCK_SIZE)
    barrier()
    if CONSUMERS == 3:
        gl.warp_specialize(
            [
                (consume, (tensors, scratch, q_tiles, rings, rows, bounds, 0, NUM_HEADS, GROUP,
                           HEAD_DIM, CONSUMERS, BOX, SCALE, WINDOW, SOFTCAP, SINKS, REST)),
                (consume, (tensors, scratch, q_tiles, rings, rows, bounds, 1, NUM_HEADS, GROUP,
                           HEAD_DIM, CONSUMERS, BOX, SCALE, WINDOW, SOFTCAP, SINKS, REST)),
                (consume, (tensors, scratch, q_tiles, rings, rows, bounds, 2, NUM_HEADS, GROUP,
                           HEAD_DIM, CONSUMERS, BOX, SCALE, WINDOW, SOFTCAP, SINKS, REST)),
                (bring, fetching),
            ],
            [4, 4, 1], [160, 160, 32],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consume, (tensors, scratch, q_tiles, rings, rows, bounds, 0, NUM_HEADS, GROUP,
                           HEAD_DIM, CONSUMERS, BOX, SCALE, WINDOW, SOFTCAP, SINKS, REST)),
                (consume, (tensors, scratch, q_tiles, rings, rows, bounds, 1, NUM_HEADS, GROUP,
                           HEAD_DIM, CONSUMERS, BOX, SCALE, WINDOW, SOFTCAP, SINKS, REST)),
                (bring, fetching),
            ],
            [4, 1], [240, 32],
        )  # fmt: skip
