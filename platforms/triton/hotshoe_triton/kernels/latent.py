"""Latent attention over a paged cache of one row per token: rows are read as they lie.

All heads of a token see the same rows, so a tile of queries is some heads of a token (decoding) or
of a few (prompts). Queries come at the size of a row, as wide [tokens, heads, LATENT] and the
rotated channels of q; results are averages of latents [tokens, heads, LATENT], which the caller
turns into values. Decode programs share tiles as those of `decode.py` do; GROUP is how many heads
one program takes.

A row is LATENT numbers of the cache's type and a rotated key. Kernels see it three times: as
numbers, WIDTH of them from row to row, as keys, KEY_WIDTH from row to row and KEY_AT within it,
and as float32. With SCALED, 8-bit numbers have a scale behind them: it multiplies the scores of
numbers, and weights, so that numbers themselves need but be widened.

Source of the absorbed form: DeepSeek-V2, arXiv:2405.04434.
Shape suffixes: M query rows, N cached rows, L latent and T rotated channels, H heads, P pairs.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.attention import (
    LOG2E,
    fresh,
    load_rows,
    pages_of,
    result,
    row_offsets,
)
from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.decode import (
    deliver_piece,
    join_pieces,
    locate,
    owner,
    share,
    tile_ends,
)
from hotshoe_triton.kernels.elementwise import largest_bits, quantize, row_scale
from hotshoe_triton.kernels.prefill import key_tiles, request_of_tile


@triton.jit
def widened(latent_NL, scale_N, dtype: tl.constexpr):
    """Return numbers of rows in the type that is multiplied, and their scales.

    Numbers of e5m2 reach 57344, so their scales are small, and weights times scales would leave
    float16's range. So a power of two moves from the numbers to the scales there.
    """
    if latent_NL.dtype == tl.float8e5 and dtype == tl.float16:
        return latent_NL.to(dtype) * 0.0009765625, scale_N * 1024.0
    else:
        return latent_NL.to(dtype), scale_N


@triton.jit
def score_rows(wide_ML, turned_MT, latent_NL, key_NT, scale_N, SCALED: tl.constexpr):
    """Return the products of queries and rows [M, N]."""
    scores_MN = tl.dot(wide_ML, tl.trans(latent_NL), input_precision="ieee")
    if SCALED:
        scores_MN *= scale_N[None, :]
    return tl.dot(turned_MT, tl.trans(key_NT), scores_MN, input_precision="ieee")


@triton.jit
def mix_rows(
    acc_ML, top_M, sum_M, scores_MN, latent_NL, scale_N, SCALE: tl.constexpr, SCALED: tl.constexpr
):
    """Take scored rows into the running softmax; what is not seen has the score -inf."""
    new_top_M = tl.maximum(top_M, tl.max(scores_MN, 1) * (SCALE * LOG2E))
    weights_MN = tl.exp2(scores_MN * (SCALE * LOG2E) - new_top_M[:, None])
    shrink_M = tl.exp2(top_M - new_top_M)
    sum_M = sum_M * shrink_M + tl.sum(weights_MN, 1)
    acc_ML = acc_ML * shrink_M[:, None]
    if SCALED:
        weights_MN *= scale_N[None, :]
    acc_ML = tl.dot(weights_MN.to(latent_NL.dtype), latent_NL, acc_ML, input_precision="ieee")
    return acc_ML, new_top_M, sum_M


@triton.jit
def absorb_rows(
    acc_ML, top_M, sum_M, wide_ML, turned_MT, position_M, cache_ptr, keys_ptr, scales_ptr,
    table_ptr, first, end, seq_len, block_stride, keys_stride,
    MASKED: tl.constexpr, LATENT: tl.constexpr, TURNED: tl.constexpr, WIDTH: tl.constexpr,
    KEY_WIDTH: tl.constexpr, KEY_AT: tl.constexpr, SCALED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SCALE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Take the tiles first..end - 1 of cached rows into the running softmax; see `absorb`."""
    channel_L = tl.arange(0, wide_ML.shape[1])
    channel_T = tl.arange(0, turned_MT.shape[1])
    pages = pages_of(table_ptr, first, seq_len, BLOCK_N, BLOCK_SIZE)
    for tile in range(first, end):
        rows_N = row_offsets(pages, tile, block_stride, BLOCK_N, BLOCK_SIZE, WIDTH)
        keys_N = row_offsets(pages, tile, keys_stride, BLOCK_N, BLOCK_SIZE, KEY_WIDTH) + KEY_AT
        scale_N = rows_N
        if SCALED:
            scale_N = row_offsets(
                pages, tile, block_stride // 4, BLOCK_N, BLOCK_SIZE, WIDTH // 4
            )  # fmt: skip
        pages = pages_of(table_ptr, tile + 1, seq_len, BLOCK_N, BLOCK_SIZE)
        key_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        there_N = key_N < seq_len
        latent_NL = load_rows(
            cache_ptr, rows_N[:, None] + channel_L[None, :], there_N, channel_L, MASKED, LATENT
        )
        key_NT = load_rows(
            keys_ptr, keys_N[:, None] + channel_T[None, :], there_N, channel_T, MASKED, TURNED
        )
        if SCALED:
            scale_N = tl.load(scales_ptr + LATENT // 4 + scale_N, mask=there_N, other=0.0)
        latent_NL, scale_N = widened(latent_NL, scale_N, wide_ML.dtype)
        scores_MN = score_rows(wide_ML, turned_MT, latent_NL, key_NT, scale_N, SCALED)
        if MASKED:
            seen_MN = key_N[None, :] <= position_M[:, None]
            scores_MN = tl.where(seen_MN, scores_MN, float("-inf"))
        acc_ML, top_M, sum_M = mix_rows(
            acc_ML, top_M, sum_M, scores_MN, latent_NL, scale_N, SCALE, SCALED
        )
    return acc_ML, top_M, sum_M


@triton.jit
def load_queries(
    wide_ptr, q_ptr, token_M, head_M, there_M, q_stride,
    NUM_HEADS: tl.constexpr, LATENT: tl.constexpr, NOPE: tl.constexpr, TURNED: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Return both parts of the queries [M, L] and [M, T], zeros where there are none."""
    channel_L, channel_T = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_T)
    wide_M = (token_M * NUM_HEADS + head_M) * LATENT
    there_ML = there_M[:, None] & (channel_L < LATENT)[None, :]
    wide_ML = tl.load(wide_ptr + wide_M[:, None] + channel_L[None, :], mask=there_ML, other=0.0)
    q_M = token_M * q_stride + head_M * (NOPE + TURNED) + NOPE
    there_MT = there_M[:, None] & (channel_T < TURNED)[None, :]
    turned_MT = tl.load(q_ptr + q_M[:, None] + channel_T[None, :], mask=there_MT, other=0.0)
    return wide_ML, turned_MT


@triton.jit(do_not_specialize=["num_reqs", "table_stride"])
def latent_decode(
    out_ptr, wide_ptr, q_ptr, cache_ptr, keys_ptr, scales_ptr, table_ptr, starts_ptr, seq_lens_ptr,
    partial_ptr, stats_ptr, counter_ptr, num_reqs, q_stride, table_stride, block_stride,
    keys_stride,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, LATENT: tl.constexpr, NOPE: tl.constexpr,
    TURNED: tl.constexpr, WIDTH: tl.constexpr, KEY_WIDTH: tl.constexpr, KEY_AT: tl.constexpr,
    SCALED: tl.constexpr, BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, UNIFORM: tl.constexpr,
    MIN_TILES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_P: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (NUM_HEADS / GROUP, programs). Scratch and counters as for `decode_attention`."""
    GROUPS: tl.constexpr = NUM_HEADS // GROUP
    wait(CHAINED)
    group, program = tl.program_id(0), tl.program_id(1)
    end_R = tile_ends(starts_ptr, seq_lens_ptr, num_reqs, UNIFORM, 0, BLOCK_N, BLOCK_R)
    at, end, total, programs = share(end_R, program, False, MIN_TILES, BLOCK_R)
    row_M = tl.arange(0, BLOCK_M)
    head_M = group * GROUP + row_M
    channel_L = tl.arange(0, BLOCK_L)
    there_ML = (row_M < GROUP)[:, None] & (channel_L < LATENT)[None, :]

    while at < end:
        request, seq_len, _low, begin, stop = locate(at, end_R, seq_lens_ptr, 0, BLOCK_N)
        until = tl.minimum(stop, end)
        token = request.to(tl.int64)
        if not UNIFORM:
            token = tl.load(starts_ptr + request).to(tl.int64)
        wide_ML, turned_MT = load_queries(
            wide_ptr, q_ptr, token, head_M, row_M < GROUP, q_stride,
            NUM_HEADS, LATENT, NOPE, TURNED, BLOCK_L, BLOCK_T,
        )  # fmt: skip
        acc_ML, top_M, sum_M = fresh(q_ptr, head_M, row_M < GROUP, False, False, BLOCK_L)
        position_M = tl.full([BLOCK_M], 0, tl.int32) + (seq_len - 1)
        acc_ML, top_M, sum_M = absorb_rows(
            acc_ML, top_M, sum_M, wide_ML, turned_MT, position_M, cache_ptr, keys_ptr, scales_ptr,
            table_ptr + request.to(tl.int64) * table_stride, at - begin, until - begin, seq_len,
            block_stride, keys_stride, True, LATENT, TURNED, WIDTH, KEY_WIDTH, KEY_AT, SCALED,
            BLOCK_SIZE, SCALE, BLOCK_N,
        )  # fmt: skip
        row_ptr = out_ptr + (token * NUM_HEADS + group * GROUP) * LATENT
        if (at == begin) & (until == stop):
            offsets_ML = row_M[:, None] * LATENT + channel_L[None, :]
            tl.store(row_ptr + offsets_ML, result(acc_ML, sum_M).to(wide_ML.dtype), mask=there_ML)
        else:
            deliver_piece(
                row_ptr, partial_ptr, stats_ptr, counter_ptr + request * GROUPS + group,
                acc_ML, top_M, sum_M, group, program * 2 + (at == begin).to(tl.int32),
                owner(begin, total, programs), owner(stop - 1, total, programs),
                GROUPS, GROUP, LATENT, BLOCK_M, BLOCK_G, BLOCK_P, BLOCK_L,
            )  # fmt: skip
        at = until


@triton.jit
def stretch(total, programs, MIN_TILES: tl.constexpr):
    """Return how many tiles each program takes: an equal share of all, rounded a little up, so that
    few requests of equal length are cut."""
    size = tl.maximum((total + programs - 1) // programs, MIN_TILES)
    quantum = 1
    while quantum * 32 <= size:
        quantum *= 2
    return (size + quantum - 1) // quantum * quantum


@triton.jit(do_not_specialize=["num_reqs"])
def join_stretches(
    out_ptr, partial_ptr, stats_ptr, seq_lens_ptr, num_reqs, PROGRAMS: tl.constexpr,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, LATENT: tl.constexpr, ROWS: tl.constexpr,
    MIN_TILES: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Make results of what several programs computed of a request.

    Grid: (num_reqs, NUM_HEADS / GROUP).

    Args:
        partial_ptr, stats_ptr: As `decode_attention` has them.
        PROGRAMS: Among which the tiles of ROWS rows were divided by `stretch`.
    """
    wait(CHAINED)
    request, group = tl.program_id(0), tl.program_id(1)
    end_R = tile_ends(seq_lens_ptr, seq_lens_ptr, num_reqs, True, 0, ROWS, BLOCK_R)
    size = stretch(tl.max(end_R, 0), PROGRAMS, MIN_TILES)
    index_R = tl.arange(0, BLOCK_R)
    begin = tl.sum(tl.where(index_R == request - 1, end_R, 0), 0)
    stop = tl.sum(tl.where(index_R == request, end_R, 0), 0)
    first, last = begin // size, (stop - 1) // size
    if first < last:
        joined_GL = join_pieces(
            partial_ptr, stats_ptr, group, first, last,
            NUM_HEADS // GROUP, GROUP, LATENT, BLOCK_G, BLOCK_P, BLOCK_L,
        )  # fmt: skip
        row_G, channel_L = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_L)
        head_G = request.to(tl.int64) * NUM_HEADS + group * GROUP + row_G
        there_GL = (row_G < GROUP)[:, None] & (channel_L < LATENT)[None, :]
        out_ptrs_GL = out_ptr + head_G[:, None] * LATENT + channel_L[None, :]
        tl.store(out_ptrs_GL, joined_GL.to(out_ptr.dtype.element_ty), mask=there_GL)


@triton.jit(do_not_specialize=["num_reqs", "table_stride"])
def latent_prefill(
    out_ptr, wide_ptr, q_ptr, cache_ptr, keys_ptr, scales_ptr, table_ptr, starts_ptr, seq_lens_ptr,
    num_reqs, q_stride, table_stride, block_stride, keys_stride,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, LATENT: tl.constexpr, NOPE: tl.constexpr,
    TURNED: tl.constexpr, WIDTH: tl.constexpr, KEY_WIDTH: tl.constexpr, KEY_AT: tl.constexpr,
    SCALED: tl.constexpr, BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (NUM_HEADS / GROUP, num_tokens // BLOCK_Q + num_reqs), as for `prefill_attention`."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    wait(CHAINED)
    group = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    request = request_of_tile(tile, starts_ptr, num_reqs, BLOCK_Q, BLOCK_R)
    start = tl.load(starts_ptr + request)
    num_queries = tl.load(starts_ptr + request + 1) - start
    first_query = (tile - start // BLOCK_Q - request) * BLOCK_Q
    if (num_queries <= 1) | (first_query >= num_queries):
        return
    seq_len = tl.load(seq_lens_ptr + request)
    first_pos = seq_len - num_queries + first_query

    row_M = tl.arange(0, BLOCK_M)
    query_M = row_M // GROUP
    head_M = group * GROUP + row_M % GROUP
    there_M = (query_M < BLOCK_Q) & (first_query + query_M < num_queries)
    position_M = tl.where(there_M, first_pos + query_M, -1)
    token_M = (start + first_query + query_M).to(tl.int64)
    wide_ML, turned_MT = load_queries(
        wide_ptr, q_ptr, token_M, head_M, there_M, q_stride,
        NUM_HEADS, LATENT, NOPE, TURNED, BLOCK_L, BLOCK_T,
    )  # fmt: skip
    acc_ML, top_M, sum_M = fresh(q_ptr, head_M, there_M, False, False, BLOCK_L)
    table_ptr += request.to(tl.int64) * table_stride

    last_pos = tl.minimum(first_pos + BLOCK_Q, seq_len) - 1
    _low, full_low, full_high, high = key_tiles(first_pos, last_pos, 0, BLOCK_N)
    acc_ML, top_M, sum_M = absorb_rows(
        acc_ML, top_M, sum_M, wide_ML, turned_MT, position_M, cache_ptr, keys_ptr, scales_ptr,
        table_ptr, full_low, full_high, seq_len, block_stride, keys_stride, False, LATENT, TURNED,
        WIDTH, KEY_WIDTH, KEY_AT, SCALED, BLOCK_SIZE, SCALE, BLOCK_N,
    )  # fmt: skip
    acc_ML, top_M, sum_M = absorb_rows(
        acc_ML, top_M, sum_M, wide_ML, turned_MT, position_M, cache_ptr, keys_ptr, scales_ptr,
        table_ptr, full_high, high, seq_len, block_stride, keys_stride, True, LATENT, TURNED,
        WIDTH, KEY_WIDTH, KEY_AT, SCALED, BLOCK_SIZE, SCALE, BLOCK_N,
    )  # fmt: skip

    channel_L = tl.arange(0, BLOCK_L)
    there_ML = there_M[:, None] & (channel_L < LATENT)[None, :]
    offsets_M = (token_M * NUM_HEADS + head_M) * LATENT
    out_ptrs_ML = out_ptr + offsets_M[:, None] + channel_L[None, :]
    tl.store(out_ptrs_ML, result(acc_ML, sum_M).to(wide_ML.dtype), mask=there_ML)


@triton.jit
def put_numbers(row_ptr, scale_ptr, x_L, channel_L, there_L, LIMIT: tl.constexpr):
    """Store numbers of a row; with LIMIT, quantized, and their scale four times."""
    dtype: tl.constexpr = row_ptr.dtype.element_ty
    if LIMIT > 0:
        wide_L = x_L.to(tl.float32)
        scale = row_scale(largest_bits(wide_L), LIMIT)
        tl.store(row_ptr + channel_L, quantize(wide_L, scale, LIMIT, dtype), mask=there_L)
        tl.store(scale_ptr + tl.arange(0, 4), tl.zeros([4], tl.float32) + scale)
    else:
        tl.store(row_ptr + channel_L, x_L.to(dtype), mask=there_L)


@triton.jit
def latent_write(
    q_ptr, latent_ptr, key_ptr, positions_ptr, cos_sin_ptr, cache_ptr, keys_ptr, scales_ptr,
    slots_ptr, q_stride, latent_stride, key_stride, block_stride, keys_stride,
    NUM_HEADS: tl.constexpr, LATENT: tl.constexpr, NOPE: tl.constexpr, TURNED: tl.constexpr,
    WIDTH: tl.constexpr, KEY_WIDTH: tl.constexpr, KEY_AT: tl.constexpr, LIMIT: tl.constexpr,
    INTERLEAVED: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_P: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Rotate q where it lies and write the cache's rows. A negative slot writes none.

    Grid: (tokens, NUM_HEADS / BLOCK_H + 1); the last program of a token writes its row.
    """
    HALF: tl.constexpr = TURNED // 2
    token = tl.program_id(0).to(tl.int64)
    wait(CHAINED)
    pair_P = tl.arange(0, BLOCK_P)
    there_P = pair_P < HALF
    a_P, b_P = pair_P, pair_P + HALF
    if INTERLEAVED:
        a_P, b_P = 2 * pair_P, 2 * pair_P + 1
    row_ptr = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * TURNED
    cos_P = tl.load(row_ptr + pair_P, mask=there_P, other=0.0)
    sin_P = tl.load(row_ptr + HALF + pair_P, mask=there_P, other=0.0)
    if tl.program_id(1) < tl.num_programs(1) - 1:
        head_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
        there_HP = (head_H < NUM_HEADS)[:, None] & there_P[None, :]
        head_ptrs_H = q_ptr + token * q_stride + head_H * (NOPE + TURNED) + NOPE
        a_ptrs_HP = head_ptrs_H[:, None] + a_P[None, :]
        b_ptrs_HP = head_ptrs_H[:, None] + b_P[None, :]
        a_HP = tl.load(a_ptrs_HP, mask=there_HP, other=0.0).to(tl.float32)
        b_HP = tl.load(b_ptrs_HP, mask=there_HP, other=0.0).to(tl.float32)
        dtype = q_ptr.dtype.element_ty
        tl.store(a_ptrs_HP, (a_HP * cos_P - b_HP * sin_P).to(dtype), mask=there_HP)
        tl.store(b_ptrs_HP, (b_HP * cos_P + a_HP * sin_P).to(dtype), mask=there_HP)
        return
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    block, inside = (slot // BLOCK_SIZE).to(tl.int64), slot % BLOCK_SIZE
    channel_L = tl.arange(0, BLOCK_L)
    there_L = channel_L < LATENT
    latent_L = tl.load(latent_ptr + token * latent_stride + channel_L, mask=there_L, other=0.0)
    put_numbers(
        cache_ptr + block * block_stride + inside * WIDTH, scales_ptr + block * (block_stride // 4)
        + inside * (WIDTH // 4) + LATENT // 4, latent_L, channel_L, there_L, LIMIT,
    )  # fmt: skip
    keys_ptr += block * keys_stride + inside * KEY_WIDTH + KEY_AT
    dtype = keys_ptr.dtype.element_ty
    key_ptr += token * key_stride
    a_P_value = tl.load(key_ptr + a_P, mask=there_P, other=0.0).to(tl.float32)
    b_P_value = tl.load(key_ptr + b_P, mask=there_P, other=0.0).to(tl.float32)
    tl.store(keys_ptr + a_P, (a_P_value * cos_P - b_P_value * sin_P).to(dtype), mask=there_P)
    tl.store(keys_ptr + b_P, (b_P_value * cos_P + a_P_value * sin_P).to(dtype), mask=there_P)
