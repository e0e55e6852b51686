"""Which tiles of keys are whose, and what becomes of requests that several programs share.

The tiles of all requests, in order, are one list, and every program takes a stretch of it.
Stretches are equal but for the last, so those of equal requests often end where these do. A stretch
may begin and end inside a request: such pieces are left in scratch memory, and the program that
delivers the last piece of a request joins all of them, in order of the keys.

Shape suffixes: R requests, P pieces, G heads of one KV head, D channels.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BOTTOM = gl.constexpr(-1.0e30)
LOG2E = gl.constexpr(1.4426950408889634)
#: Stretches of the longest request.
MAX_PIECES = gl.constexpr(32)


@gluon.constexpr_function
def requests(count, warps):
    """Return how threads take numbers of requests. Every warp has all of them where they are few,
    so that none waits for another."""
    return gl.BlockedLayout([count // 32 if count <= 256 else 1], [32], [warps], [0])


@gluon.jit
def plus(a, b):
    return a + b


@gluon.jit
def hint(ptr, numel):
    """Bring lines of integers nearer while earlier kernels still run; all programs share them."""
    THREADS: gl.constexpr = 32 * gl.num_warps()
    lane = gl.arange(0, THREADS, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    program = gl.program_id(1) * gl.num_programs(0) + gl.program_id(0)
    line = (program * THREADS + lane) * 32
    gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
        "=r,l,r", [(ptr + line).to(gl.int64), (line < numel).to(gl.int32)], gl.int32, False, 1,
    )  # fmt: skip


@gluon.jit
def first_tile(seq_len, WINDOW: gl.constexpr, TILE: gl.constexpr):
    """Return the first tile that the query at seq_len - 1 sees."""
    first = seq_len * 0
    if WINDOW > 0:
        first = gl.maximum(seq_len - WINDOW, 0) // TILE
    return first


@gluon.jit
def tiles_of(seq_len, WINDOW: gl.constexpr, TILE: gl.constexpr):
    """Return the number of a request's tiles; one if it has no keys, which gives it zeros."""
    return gl.maximum(gl.cdiv(seq_len, TILE) - first_tile(seq_len, WINDOW, TILE), 1)


@gluon.jit
def shares(
    starts_ptr, seq_lens_ptr, num_reqs, UNIFORM: gl.constexpr, WINDOW: gl.constexpr,
    TILE: gl.constexpr, MIN_TILES: gl.constexpr, BLOCK_R: gl.constexpr,
):  # fmt: skip
    """Return a share's size, this program's tiles as begin and end, and of the request that holds
    the first: its number, and where its tiles begin in the list.

    Without UNIFORM, requests with another number of queries than one have no tiles.
    """
    index_R = gl.arange(0, BLOCK_R, requests(BLOCK_R, gl.num_warps()))
    there_R = index_R < num_reqs
    seq_len_R = gl.load(seq_lens_ptr + index_R, mask=there_R, other=0)
    if not UNIFORM:
        start_R = gl.load(starts_ptr + index_R, mask=there_R, other=0)
        there_R &= gl.load(starts_ptr + 1 + index_R, mask=there_R, other=0) - start_R == 1
    tiles_R = gl.where(there_R, tiles_of(seq_len_R, WINDOW, TILE), 0)
    end_R = gl.associative_scan(tiles_R, 0, plus)
    total = gl.max(end_R, 0)
    # Who joins a request reads all of its pieces alone, so there are not too many.
    least = gl.maximum(gl.cdiv(gl.max(tiles_R, 0), MAX_PIECES), MIN_TILES)
    size = gl.maximum(gl.cdiv(total, gl.num_programs(1)), least)
    at = gl.program_id(1) * size
    request = gl.sum((end_R <= at).to(gl.int32), 0)
    begin = gl.max(gl.where(end_R <= at, end_R, 0), 0)
    return size, at, gl.minimum(at + size, total), request, begin


@gluon.jit
def written(slots_ptr, num_reqs, BLOCK_SIZE: gl.constexpr, BLOCK_R: gl.constexpr):
    """Return the pages [R] that a step of one query for each request writes to."""
    index_R = gl.arange(0, BLOCK_R, requests(BLOCK_R, gl.num_warps()))
    return gl.load(slots_ptr + index_R, mask=index_R < num_reqs, other=-BLOCK_SIZE) // BLOCK_SIZE


@gluon.jit
def meets(page_R, row_table_ptr, tile, pages, TILE: gl.constexpr, BLOCK_SIZE: gl.constexpr):
    """Return which of some pages [R] a tile lies in, of a request that has so many pages."""
    found_R = page_R < -1
    for page in gl.static_range(max(1, TILE // BLOCK_SIZE)):
        at = tile * TILE // BLOCK_SIZE + page
        found_R |= page_R == gl.load(row_table_ptr + at, mask=at < pages, other=-2)
    return found_R


@gluon.jit
def following(request, starts_ptr, UNIFORM: gl.constexpr):
    """Return the next request of one query; the caller knows that there is one."""
    request += 1
    if not UNIFORM:
        while gl.load(starts_ptr + request + 1) - gl.load(starts_ptr + request) != 1:
            request += 1
    return request


@gluon.jit
def row_of(request, starts_ptr, UNIFORM: gl.constexpr):
    """Return the row of a request's query, int64."""
    row = request
    if not UNIFORM:
        row = gl.load(starts_ptr + request)
    return row.to(gl.int64)


@gluon.jit
def noted(piece, there, other):
    """Return what is known of a piece, or of another if that is there."""
    request, row, begin, stop = piece
    other_request, other_row, other_begin, other_stop = other
    request, row = gl.where(there, other_request, request), gl.where(there, other_row, row)
    return request, row, gl.where(there, other_begin, begin), gl.where(there, other_stop, stop)


@gluon.jit
def onward(
    at, end, request, seq_len, stop, base, starts_ptr, seq_lens_ptr, UNIFORM: gl.constexpr,
    WINDOW: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Go on to a tile of the list, maybe the next request's: return the request that holds it, its
    length, where its tiles end in the list, and what the list's tiles need to become its own."""
    if (at == stop) & (at < end):
        request = following(request, starts_ptr, UNIFORM)
        seq_len = gl.load(seq_lens_ptr + request)
        base = first_tile(seq_len, WINDOW, TILE) - at
        stop = at + tiles_of(seq_len, WINDOW, TILE)
    return request, seq_len, stop, base


@gluon.jit
def finish(
    acc_GD, top_G, sum_G, whole, with_sink, request_row, piece, kv_head, out_ptr, sinks_ptr,
    partial_ptr, stats_ptr,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, SINKS: gl.constexpr,
):  # fmt: skip
    """Store a result, or a piece of one."""
    head_G = gl.arange(0, acc_GD.shape[0], gl.SliceLayout(1, acc_GD.type.layout))
    channel_D = gl.arange(0, acc_GD.shape[1], gl.SliceLayout(0, acc_GD.type.layout))
    there_GD = (head_G < GROUP)[:, None] & (channel_D >= 0)[None, :]
    # Where nothing was seen anything may have been multiplied by 0.
    acc_GD = gl.where((sum_G > 0)[:, None], acc_GD, 0.0)
    if SINKS and with_sink:
        sink_G = gl.load(sinks_ptr + kv_head * GROUP + head_G, mask=head_G < GROUP, other=0.0)
        new_top_G = gl.maximum(top_G, sink_G * LOG2E)
        shrink_G = gl.exp2(top_G - new_top_G)
        sum_G = sum_G * shrink_G + gl.exp2(sink_G * LOG2E - new_top_G)
        acc_GD = acc_GD * shrink_G[:, None]
        top_G = new_top_G
    places_GD = head_G[:, None] * HEAD_DIM + channel_D[None, :]
    if whole:
        y_GD = acc_GD / gl.where(sum_G > 0, sum_G, 1.0)[:, None]
        out_ptr += (request_row * NUM_HEADS + kv_head * GROUP) * HEAD_DIM
        gl.store(out_ptr + places_GD, y_GD.to(out_ptr.dtype.element_ty), mask=there_GD)
    else:
        first_row = (piece * (NUM_HEADS // GROUP) + kv_head) * GROUP
        gl.store(partial_ptr + first_row * HEAD_DIM + places_GD, acc_GD, mask=there_GD)
        stats_ptrs_G = stats_ptr + (first_row + head_G) * 2
        gl.store(stats_ptrs_G, top_G, mask=head_G < GROUP)
        gl.store(stats_ptrs_G + 1, sum_G, mask=head_G < GROUP)


@gluon.constexpr_function
def rows_of(count, warps, width):
    """Return how threads take rows [P, G, D] of so many channels: four neighbors, of P pieces."""
    lanes = width // 4
    return gl.BlockedLayout([count, 1, 4], [1, 32 // lanes, lanes], [1, warps, 1], [2, 1, 0])


@gluon.jit
def join(
    out_ptr, partial_ptr, stats_ptr, kv_head, first, last,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_G: gl.constexpr,
    BLOCK_P: gl.constexpr,
):  # fmt: skip
    """Store the result of a request that programs first..last share, at its first head's place."""
    PIECES: gl.constexpr = rows_of(BLOCK_P, gl.num_warps(), HEAD_DIM)
    STATS: gl.constexpr = gl.SliceLayout(2, PIECES)
    lane_P = gl.arange(0, BLOCK_P, gl.SliceLayout(1, STATS))
    head_G = gl.arange(0, BLOCK_G, gl.SliceLayout(0, STATS))
    channel_D = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, gl.SliceLayout(1, PIECES)))
    acc_GD = gl.zeros([BLOCK_G, HEAD_DIM], gl.float32, gl.SliceLayout(0, PIECES))
    top_G = gl.full([BLOCK_G], BOTTOM, gl.float32, gl.SliceLayout(0, STATS))
    sum_G = gl.zeros_like(top_G)
    for base in range(first, last + 1, BLOCK_P):
        program_P = base + lane_P
        # A program's piece of its last request has the second of its two places.
        place_P = program_P * 2 + (program_P == first).to(gl.int32)
        row_PG = ((place_P * (NUM_HEADS // GROUP) + kv_head) * GROUP)[:, None] + head_G[None, :]
        there_PG = (program_P <= last)[:, None] & (head_G < GROUP)[None, :]
        stats_ptrs_PG = stats_ptr + row_PG * 2
        top_PG = gl.load(stats_ptrs_PG, mask=there_PG, other=BOTTOM, cache_modifier=".cg")
        sum_PG = gl.load(stats_ptrs_PG + 1, mask=there_PG, other=0.0, cache_modifier=".cg")
        piece_PGD = gl.load(
            partial_ptr + (row_PG * HEAD_DIM)[:, :, None] + channel_D[None, None, :],
            mask=there_PG[:, :, None] & (channel_D >= 0)[None, None, :], other=0.0,
            cache_modifier=".cg",
        )  # fmt: skip
        new_top_G = gl.maximum(top_G, gl.max(top_PG, 0))
        shrink_G = gl.exp2(top_G - new_top_G)
        factor_PG = gl.exp2(top_PG - new_top_G[None, :])
        shrink_row_G = gl.convert_layout(shrink_G, gl.SliceLayout(1, acc_GD.type.layout))
        acc_GD = acc_GD * shrink_row_G[:, None] + gl.sum(piece_PGD * factor_PG[:, :, None], 0)
        sum_G = sum_G * shrink_G + gl.sum(sum_PG * factor_PG, 0)
        top_G = new_top_G
    sum_G = gl.convert_layout(sum_G, gl.SliceLayout(1, acc_GD.type.layout))
    y_GD = acc_GD / gl.where(sum_G > 0, sum_G, 1.0)[:, None]
    row_G = gl.arange(0, BLOCK_G, gl.SliceLayout(1, acc_GD.type.layout))
    column_D = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, acc_GD.type.layout))
    there_GD = (row_G < GROUP)[:, None] & (column_D >= 0)[None, :]
    out_ptrs_GD = out_ptr + row_G[:, None] * HEAD_DIM + column_D[None, :]
    gl.store(out_ptrs_GD, y_GD.to(out_ptr.dtype.element_ty), mask=there_GD)


@gluon.jit
def deliver(
    request, row, begin, stop, size, kv_head, out_ptr, partial_ptr, stats_ptr, counter_ptr,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_G: gl.constexpr,
    BLOCK_P: gl.constexpr,
):  # fmt: skip
    """Count a piece of a request; with the last piece, join all."""
    first, last = begin // size, (stop - 1) // size
    cell_ptr = counter_ptr + request * (NUM_HEADS // GROUP) + kv_head
    if gl.atomic_add(cell_ptr, 1, sem="acq_rel", scope="gpu") == last - first:
        gl.store(cell_ptr, 0)
        at = (row * NUM_HEADS + kv_head * GROUP) * HEAD_DIM
        join(out_ptr + at, partial_ptr, stats_ptr, kv_head, first, last,
             NUM_HEADS, GROUP, HEAD_DIM, BLOCK_G, BLOCK_P)  # fmt: skip
