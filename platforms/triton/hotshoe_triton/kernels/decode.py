"""Paged attention for requests with one query in a step: every program reads an equal share.

The tiles of all requests, in order, are one list, and each of a fixed number of programs takes an
equal stretch of it. So the grid is the same for every batch (a captured graph stays valid), and one
long request among short ones keeps no program waiting. A stretch may begin or end inside a request:
such a piece goes to a scratch slot, and the program that delivers a request's last piece joins them
in order of the keys, so results do not depend on timing. With ALONE each request has one program
and its result does not depend on the batch either.

Tokens of one sequence may stand side by side, each as a request (`StepShape.spans`). Up to SHARED
of them are computed together, in rows that a tile has anyhow, so that their keys are read once. The
first one leads: its tiles are those of all, and the others have none.

Shape suffixes: R requests, P pieces of a request, G heads of one KV head; others as in attention.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.attention import (
    BOTTOM,
    absorb,
    fresh,
    of_head,
    pages_of,
    result,
    row_offsets,
    slopes_of,
)
from hotshoe_triton.kernels.chain import ask_for, wait


@triton.jit
def first_tile(seq_len, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the first tile that the query at seq_len - 1 sees."""
    if WINDOW > 0:
        first = tl.maximum(seq_len - WINDOW, 0) // BLOCK_N
    else:
        first = seq_len * 0
    return first


@triton.jit
def num_together(spans_ptr, at, there, SHARED: tl.constexpr):
    """Return how many requests from a leader on are computed with it, itself included."""
    return tl.minimum(tl.load(spans_ptr + 2 * at + 1, mask=there, other=1) - at, SHARED)


@triton.jit
def tile_ends(
    starts_ptr, seq_lens_ptr, num_reqs, UNIFORM: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, spans_ptr=None, SHARED: tl.constexpr = 1,
):  # fmt: skip
    """Return for each request [R] the end of its tiles in the list of all tiles, int32.

    A request without keys has one tile, which gives it zeros. Without UNIFORM, requests with
    another number of queries than one have none.
    """
    index_R = tl.arange(0, BLOCK_R)
    there_R = index_R < num_reqs
    seq_len_R = tl.load(seq_lens_ptr + index_R, mask=there_R, other=0)
    low_R = first_tile(seq_len_R, WINDOW, BLOCK_N)
    if SHARED > 1:
        last_R = index_R + num_together(spans_ptr, index_R, there_R, SHARED) - 1
        seq_len_R = tl.load(seq_lens_ptr + last_R, mask=there_R, other=0)
    tiles_R = tl.maximum(tl.cdiv(seq_len_R, BLOCK_N) - low_R, 1)
    if SHARED > 1:
        before_R = index_R - tl.load(spans_ptr + 2 * index_R, mask=there_R, other=0)
        there_R &= before_R % SHARED == 0
    if not UNIFORM:
        start_R = tl.load(starts_ptr + index_R, mask=there_R, other=0)
        end_R = tl.load(starts_ptr + 1 + index_R, mask=there_R, other=0)
        there_R &= end_R - start_R == 1
    return tl.cumsum(tl.where(there_R, tiles_R, 0), 0)


@triton.jit
def share_begin(program, total, programs):
    """Return the first tile of a program's share; the first total % programs have one more."""
    return program * (total // programs) + tl.minimum(program, total % programs)


@triton.jit
def owner(tile, total, programs):
    """Return the program whose share holds a tile."""
    size, longer = total // programs, total % programs
    rest = tl.maximum(tile - longer * (size + 1), 0)
    late = longer + rest // tl.maximum(size, 1)
    return tl.where(tile < longer * (size + 1), tile // (size + 1), late)


@triton.jit
def share(
    end_R, program, ALONE: tl.constexpr, MIN_TILES: tl.constexpr, BLOCK_R: tl.constexpr
):  # fmt: skip
    """Return this program's tiles as begin and end, the number of all tiles, and of programs that
    have any."""
    total = tl.max(end_R, 0)
    programs = tl.num_programs(1)
    if ALONE:
        index_R = tl.arange(0, BLOCK_R)
        begin = tl.max(tl.where(index_R < program, end_R, 0), 0)
        end = tl.max(tl.where(index_R <= program, end_R, 0), 0)
    else:
        programs = tl.minimum(programs, tl.maximum(tl.cdiv(total, MIN_TILES), 1))
        begin = share_begin(program, total, programs)
        end = tl.minimum(share_begin(program + 1, total, programs), total)
    return begin, end, total, programs


@triton.jit
def join_pieces(
    partial_ptr, stats_ptr, kv_head, first, last,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Return a request's result [G, D] from the pieces of programs first..last."""
    group_G = tl.arange(0, BLOCK_G)
    channel_D = tl.arange(0, BLOCK_D)
    here_GD = (group_G < GROUP)[:, None] & (channel_D < HEAD_DIM)[None, :]
    acc_GD = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    top_G = tl.full([BLOCK_G], BOTTOM, tl.float32)
    sum_G = tl.zeros([BLOCK_G], tl.float32)
    for base in range(first, last + 1, BLOCK_P):
        program_P = base + tl.arange(0, BLOCK_P)
        there_P = program_P <= last
        slot_P = program_P * 2 + (program_P == first).to(tl.int32)
        row_GP = (slot_P[None, :] * NUM_KV_HEADS + kv_head) * GROUP + group_G[:, None]
        there_GP = there_P[None, :] & (group_G < GROUP)[:, None]
        stats_ptrs_GP = stats_ptr + row_GP * 2
        top_GP = tl.load(stats_ptrs_GP, mask=there_GP, other=BOTTOM, cache_modifier=".cg")
        sum_GP = tl.load(stats_ptrs_GP + 1, mask=there_GP, other=0.0, cache_modifier=".cg")
        new_top_G = tl.maximum(top_G, tl.max(top_GP, 1))
        factor_GP = tl.where(there_GP, tl.exp2(top_GP - new_top_G[:, None]), 0.0)
        shrink_G = tl.exp2(top_G - new_top_G)
        piece_GPD = tl.load(
            partial_ptr + row_GP[:, :, None] * HEAD_DIM + channel_D[None, None, :],
            mask=there_P[None, :, None] & here_GD[:, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        acc_GD = acc_GD * shrink_G[:, None] + tl.sum(piece_GPD * factor_GP[:, :, None], 1)
        sum_G = sum_G * shrink_G + tl.sum(sum_GP * factor_GP, 1)
        top_G = new_top_G
    return result(acc_GD, sum_G)


@triton.jit
def locate(
    at, end_R, seq_lens_ptr, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr, spans_ptr=None,
    SHARED: tl.constexpr = 1,
):  # fmt: skip
    """Return the request that holds a tile of the list, its length, the first tile it sees, and
    where its tiles begin and end in the list. Of a leader, the length is that of the longest."""
    request = tl.sum((end_R <= at).to(tl.int32), 0)
    end = tl.min(tl.where(end_R > at, end_R, 2147483647), 0)
    seq_len = tl.load(seq_lens_ptr + request)
    low = first_tile(seq_len, WINDOW, BLOCK_N)
    if SHARED > 1:
        last = request + num_together(spans_ptr, request, True, SHARED) - 1
        seq_len = tl.load(seq_lens_ptr + last)
    return request, seq_len, low, end - tl.maximum(tl.cdiv(seq_len, BLOCK_N) - low, 1), end


@triton.jit
def ask_for_tile(
    at, end, end_R, seq_lens_ptr, table_ptr, table_stride, k_ptr, v_ptr, block_stride,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr,
    CHAINED: tl.constexpr, spans_ptr, SHARED: tl.constexpr,
):  # fmt: skip
    """Bring a tile of the list nearer while earlier kernels still run, in lines of 128 bytes."""
    LINE: tl.constexpr = 128 * 8 // k_ptr.dtype.element_ty.primitive_bitwidth
    if at < end:
        request, seq_len, low, begin, _stop = locate(
            at, end_R, seq_lens_ptr, WINDOW, BLOCK_N, spans_ptr, SHARED
        )
        row_table_ptr = table_ptr + request.to(tl.int64) * table_stride
        tile = at - begin + low
        pages = pages_of(row_table_ptr, tile, seq_len, BLOCK_N, BLOCK_SIZE)
        rows_N = row_offsets(pages, tile, block_stride, BLOCK_N, BLOCK_SIZE, HEAD_DIM)
        for channel in tl.static_range(0, HEAD_DIM, LINE):
            ask_for(k_ptr + rows_N + channel, CHAINED)
            ask_for(v_ptr + rows_N + channel, CHAINED)


@triton.jit
def place_of(row, GROUP: tl.constexpr, NUM_KV_HEADS: tl.constexpr):
    """Return how many heads behind a leader's first one a row's result lies."""
    return row // GROUP * (GROUP * NUM_KV_HEADS) + row % GROUP


@triton.jit
def deliver_piece(
    out_ptr, partial_ptr, stats_ptr, cell_ptr, acc_MD, top_M, sum_M, kv_head, slot, first, last,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, num_rows=None,
    SHARED: tl.constexpr = 1,
):  # fmt: skip
    """Put a piece into its slot; with the last piece of programs first..last, store the result.

    With SHARED, GROUP counts the rows of all requests that may be computed together, of which
    `num_rows` are there.
    """
    row_M = tl.arange(0, BLOCK_M)
    channel_D = tl.arange(0, BLOCK_D)
    there_MD = (row_M < GROUP)[:, None] & (channel_D < HEAD_DIM)[None, :]
    piece_M = (slot * NUM_KV_HEADS + kv_head) * GROUP + row_M
    tl.store(partial_ptr + piece_M[:, None] * HEAD_DIM + channel_D[None, :], acc_MD, there_MD)
    tl.store(stats_ptr + piece_M * 2, top_M, row_M < GROUP)
    tl.store(stats_ptr + piece_M * 2 + 1, sum_M, row_M < GROUP)
    tl.debug_barrier()
    if tl.atomic_add(cell_ptr, 1, sem="acq_rel", scope="gpu") == last - first:
        tl.store(cell_ptr, 0)
        out_GD = join_pieces(
            partial_ptr, stats_ptr, kv_head, first, last,
            NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_G, BLOCK_P, BLOCK_D,
        )  # fmt: skip
        group_G = tl.arange(0, BLOCK_G)
        here_GD = (group_G < GROUP)[:, None] & (channel_D < HEAD_DIM)[None, :]
        place_G = group_G
        if SHARED > 1:
            here_GD &= (group_G < num_rows)[:, None]
            place_G = place_of(group_G, GROUP // SHARED, NUM_KV_HEADS)
        offsets_GD = place_G[:, None] * HEAD_DIM + channel_D[None, :]
        tl.store(out_ptr + offsets_GD, out_GD.to(out_ptr.dtype.element_ty), mask=here_GD)


@triton.jit
def leave(
    out_ptr, partial_ptr, stats_ptr, cell_ptr, acc_MD, top_M, sum_M, kv_head, program, num_rows,
    begin, at, until, stop, total, programs,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Store the result of a leader's tiles begin..stop - 1, or what the tiles at..until - 1 give,
    if these are not all."""
    if (at == begin) & (until == stop):
        row_M, channel_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
        out_MD = result(acc_MD, sum_M).to(out_ptr.dtype.element_ty)
        place_M = place_of(row_M, GROUP, NUM_KV_HEADS)
        there_MD = (row_M < num_rows)[:, None] & (channel_D < HEAD_DIM)[None, :]
        out_ptrs_MD = out_ptr + place_M[:, None] * HEAD_DIM + channel_D[None, :]
        tl.store(out_ptrs_MD, out_MD, mask=there_MD)
    else:
        deliver_piece(
            out_ptr, partial_ptr, stats_ptr, cell_ptr, acc_MD, top_M, sum_M, kv_head,
            program * 2 + (at == begin).to(tl.int32), owner(begin, total, programs),
            owner(stop - 1, total, programs), NUM_KV_HEADS, GROUP * SHARED, HEAD_DIM, BLOCK_M,
            BLOCK_G, BLOCK_P, BLOCK_D, num_rows, SHARED,
        )  # fmt: skip


@triton.jit
def queries_of(
    q_ptr, q_stride, seq_lens_ptr, spans_ptr, request, token, seq_len, kv_head,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    SHARED: tl.constexpr,
):  # fmt: skip
    """Return the queries [M, D] of a leader and of those computed with it, their positions [M],
    which rows there are, and how many."""
    row_M, channel_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    num_rows = request * 0 + GROUP
    if SHARED > 1:
        num_rows = num_together(spans_ptr, request, True, SHARED) * GROUP
    there_M = row_M < num_rows
    position_M = row_M * 0 + (seq_len - 1)
    if SHARED > 1:
        lens_ptrs_M = seq_lens_ptr + request + row_M // GROUP
        position_M = tl.load(lens_ptrs_M, mask=there_M, other=0) - 1
    token_M = token + row_M // GROUP
    offsets_M = token_M * q_stride + (kv_head * GROUP + row_M % GROUP) * HEAD_DIM
    there_MD = there_M[:, None] & (channel_D < HEAD_DIM)[None, :]
    q_MD = tl.load(q_ptr + offsets_M[:, None] + channel_D[None, :], mask=there_MD, other=0.0)
    return q_MD, position_M, there_M, num_rows


@triton.jit(do_not_specialize=["num_reqs", "table_stride"])
def decode_attention(
    out_ptr, q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, starts_ptr, seq_lens_ptr,
    sinks_ptr, spans_ptr, partial_ptr, stats_ptr, counter_ptr, num_reqs, q_stride, table_stride,
    block_stride, NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr, UNIFORM: tl.constexpr, ALONE: tl.constexpr, MIN_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_P: tl.constexpr, SCALES: tl.constexpr, SLOPE: tl.constexpr,
    SLOPE_HEADS: tl.constexpr, SLOPE_FIRST: tl.constexpr, SLOPE_FACTOR: tl.constexpr,
    EARLY: tl.constexpr, CHAINED: tl.constexpr, SHARED: tl.constexpr = 1,
):  # fmt: skip
    """Grid: (num_kv_heads, programs); programs = num_reqs with ALONE. Where there is little to
    read, only as many programs work as get MIN_TILES each. EARLY: none in front writes lengths.
    More than 1 in SHARED asks for UNIFORM, and spans are of no use else.

    Args:
        partial_ptr: [programs * 2, num_kv_heads, GROUP * SHARED, HEAD_DIM] float32, scratch.
        stats_ptr: [programs * 2, num_kv_heads, GROUP * SHARED, 2] float32, scratch.
        counter_ptr: [num_reqs, num_kv_heads] int32, zero before and after.
    """
    NUM_KV_HEADS: tl.constexpr = NUM_HEADS // GROUP
    wait(CHAINED and not EARLY)
    kv_head, program = tl.program_id(0), tl.program_id(1)
    end_R = tile_ends(
        starts_ptr, seq_lens_ptr, num_reqs, UNIFORM, WINDOW, BLOCK_N, BLOCK_R, spans_ptr, SHARED
    )
    at, end, total, programs = share(end_R, program, ALONE, MIN_TILES, BLOCK_R)
    head_M = kv_head * GROUP + tl.arange(0, BLOCK_M) % GROUP
    slope_M = slopes_of(head_M, SLOPE, SLOPE_HEADS, SLOPE_FIRST, SLOPE_FACTOR)
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr = of_head(
        k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, kv_head, BLOCK_SIZE, HEAD_DIM, SCALES
    )
    ask_for_tile(at, end, end_R, seq_lens_ptr, table_ptr, table_stride, k_ptr, v_ptr, block_stride,
                 HEAD_DIM, BLOCK_SIZE, WINDOW, BLOCK_N, CHAINED and EARLY, spans_ptr,
                 SHARED)  # fmt: skip
    wait(CHAINED and EARLY)
    while at < end:
        request, seq_len, low, begin, stop = locate(
            at, end_R, seq_lens_ptr, WINDOW, BLOCK_N, spans_ptr, SHARED
        )
        until = tl.minimum(stop, end)
        token = request.to(tl.int64) if UNIFORM else tl.load(starts_ptr + request).to(tl.int64)
        q_MD, position_M, there_M, num_rows = queries_of(
            q_ptr, q_stride, seq_lens_ptr, spans_ptr, request, token, seq_len, kv_head,
            GROUP, HEAD_DIM, BLOCK_M, BLOCK_D, SHARED,
        )  # fmt: skip
        acc_MD, top_M, sum_M = fresh(sinks_ptr, head_M, there_M, at == begin, SINKS, BLOCK_D)
        row_table_ptr, first = table_ptr + request.to(tl.int64) * table_stride, at - begin + low
        acc_MD, top_M, sum_M = absorb(
            acc_MD, top_M, sum_M, q_MD, position_M, slope_M, k_ptr, v_ptr, k_scale_ptr,
            v_scale_ptr, row_table_ptr, first, first + until - at, seq_len, block_stride, True,
            HEAD_DIM, BLOCK_SIZE, SCALE, WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, SCALES, SLOPE > 0,
        )  # fmt: skip
        leave(
            out_ptr + (token * NUM_HEADS + kv_head * GROUP) * HEAD_DIM, partial_ptr, stats_ptr,
            counter_ptr + request * NUM_KV_HEADS + kv_head, acc_MD, top_M, sum_M, kv_head,
            program, num_rows, begin, at, until, stop, total, programs,
            NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_M, BLOCK_G, BLOCK_P, BLOCK_D, SHARED,
        )  # fmt: skip
        at = until
