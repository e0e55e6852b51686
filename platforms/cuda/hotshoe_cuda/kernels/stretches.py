"""Which tiles of keys are whose, and what becomes of requests that several programs share.

The tiles of all requests, in order, are one list, and every program takes a stretch of it.
Stretches are equal but for the last, so those of equal requests often end where these do. A stretch
may begin and end inside a request: such pieces are left in scratch memory, and the program that
delivers the last piece of a request joins all of them, in order of the keys.

Shape suffixes: R requests, P pieces, E heads times channels.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BOTTOM = gl.constexpr(-1.0e30)


@gluon.jit
def plus(a, b):
    return a + b


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
    # Every warp has all of them where they are few, so that none waits for another.
    PER: gl.constexpr = BLOCK_R // 32 if BLOCK_R <= 256 else 1
    ALONG: gl.constexpr = gl.BlockedLayout([PER], [32], [gl.num_warps()], [0])
    index_R = gl.arange(0, BLOCK_R, ALONG)
    there_R = index_R < num_reqs
    seq_len_R = gl.load(seq_lens_ptr + index_R, mask=there_R, other=0)
    if not UNIFORM:
        start_R = gl.load(starts_ptr + index_R, mask=there_R, other=0)
        there_R &= gl.load(starts_ptr + 1 + index_R, mask=there_R, other=0) - start_R == 1
    tiles_R = gl.where(there_R, tiles_of(seq_len_R, WINDOW, TILE), 0)
    end_R = gl.associative_scan(tiles_R, 0, plus)
    total = gl.max(end_R, 0)
    size = gl.maximum(gl.cdiv(total, gl.num_programs(1)), MIN_TILES)
    at = gl.program_id(1) * size
    request = gl.sum((end_R <= at).to(gl.int32), 0)
    begin = gl.max(gl.where(end_R <= at, end_R, 0), 0)
    return size, at, gl.minimum(at + size, total), request, begin


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
def join(
    out_ptr, partial_ptr, stats_ptr, kv_head, first, last,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_E: gl.constexpr,
    BLOCK_P: gl.constexpr,
):  # fmt: skip
    """Store the result of a request that programs first..last share, at its first head's place."""
    PER: gl.constexpr = max(1, min(4, BLOCK_E // (32 * gl.num_warps())))
    PIECES: gl.constexpr = gl.BlockedLayout([BLOCK_P, PER], [1, 32], [1, gl.num_warps()], [1, 0])
    lane_P = gl.arange(0, BLOCK_P, gl.SliceLayout(1, PIECES))
    index_E = gl.arange(0, BLOCK_E, gl.SliceLayout(0, PIECES))
    there_E = index_E < GROUP * HEAD_DIM
    acc_E = gl.zeros([BLOCK_E], gl.float32, gl.SliceLayout(0, PIECES))
    top_E = gl.full_like(acc_E, BOTTOM)
    sum_E = gl.zeros_like(acc_E)
    for base in range(first, last + 1, BLOCK_P):
        program_P = base + lane_P
        # A program's piece of a request that begins with it has the second of its two places.
        place_P = program_P * 2 + (program_P == first).to(gl.int32)
        row_P = (place_P * (NUM_HEADS // GROUP) + kv_head) * GROUP
        there_PE = (program_P <= last)[:, None] & there_E[None, :]
        stats_ptrs_PE = stats_ptr + (row_P[:, None] + (index_E // HEAD_DIM)[None, :]) * 2
        top_PE = gl.load(stats_ptrs_PE, mask=there_PE, other=BOTTOM, cache_modifier=".cg")
        sum_PE = gl.load(stats_ptrs_PE + 1, mask=there_PE, other=0.0, cache_modifier=".cg")
        piece_PE = gl.load(
            partial_ptr + (row_P * HEAD_DIM)[:, None] + index_E[None, :], mask=there_PE, other=0.0,
            cache_modifier=".cg",
        )  # fmt: skip
        new_top_E = gl.maximum(top_E, gl.max(top_PE, 0))
        shrink_E = gl.exp2(top_E - new_top_E)
        factor_PE = gl.exp2(top_PE - new_top_E[None, :])
        acc_E = acc_E * shrink_E + gl.sum(piece_PE * factor_PE, 0)
        sum_E = sum_E * shrink_E + gl.sum(sum_PE * factor_PE, 0)
        top_E = new_top_E
    y_E = acc_E / gl.where(sum_E > 0, sum_E, 1.0)
    gl.store(out_ptr + index_E, y_E.to(out_ptr.dtype.element_ty), mask=there_E)


@gluon.jit
def deliver(
    request, row, begin, stop, size, kv_head, out_ptr, partial_ptr, stats_ptr, counter_ptr,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_E: gl.constexpr,
    BLOCK_P: gl.constexpr,
):  # fmt: skip
    """Count a piece of a request; with the last piece, join all."""
    first, last = begin // size, (stop - 1) // size
    cell_ptr = counter_ptr + request * (NUM_HEADS // GROUP) + kv_head
    if gl.atomic_add(cell_ptr, 1, sem="acq_rel", scope="gpu") == last - first:
        gl.store(cell_ptr, 0)
        at = (row * NUM_HEADS + kv_head * GROUP) * HEAD_DIM
        join(out_ptr + at, partial_ptr, stats_ptr, kv_head, first, last,
             NUM_HEADS, GROUP, HEAD_DIM, BLOCK_E, BLOCK_P)  # fmt: skip
