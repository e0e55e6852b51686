"""Attention to a window of rows and to entries, each row key and value of all heads; and how
entries are made.

A program of attention takes some heads of one token. One that makes an entry belongs to a token,
and works if a group ends there, so that the host knows the grid. Shape suffixes: M heads, N rows,
D channels, P pairs of channels.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.attention import fresh, load_rows, result
from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.indexer import seen_by, turn
from hotshoe_triton.kernels.latent import mix_rows


@triton.jit
def take_rows(
    acc_MD, top_M, sum_M, q_MD, cache_ptr, table_ptr, block_N, inside_N, there_N, block_stride,
    HEAD_DIM: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Take rows into the running softmax, given columns of the block table and places in blocks."""
    channel_D = tl.arange(0, q_MD.shape[1])
    page_N = tl.load(table_ptr + block_N, mask=there_N, other=0).to(tl.int64)
    offsets_ND = (page_N * block_stride + inside_N * HEAD_DIM)[:, None] + channel_D[None, :]
    rows_ND = load_rows(cache_ptr, offsets_ND, there_N, channel_D, True, HEAD_DIM).to(q_MD.dtype)
    scores_MN = tl.dot(q_MD, tl.trans(rows_ND), input_precision="ieee")
    scores_MN = tl.where(there_N[None, :], scores_MN, float("-inf"))
    return mix_rows(acc_MD, top_M, sum_M, scores_MN, rows_ND, inside_N, SCALE, False)


@triton.jit
def entries_of(seen, TOKENS: tl.constexpr, TOP_K: tl.constexpr):
    """Return how many entries a token reads at most, given the tokens that it sees."""
    whole = seen * 0
    if TOKENS > 0:
        whole = seen // TOKENS
    if TOP_K > 0:
        whole = tl.minimum(whole, TOP_K)
    return whole


@triton.jit
def leave(
    out_ptr, notes_ptr, acc_MD, top_M, sum_M, dtype: tl.constexpr, head_M, there_M, offsets_MD,
    there_MD, place, NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Store averages of a token; with SPLIT sums of a part of its rows, and what they are of."""
    if SPLIT:
        place += tl.program_id(2).to(tl.int64) * tl.num_programs(1)
        note_ptrs = notes_ptr + (place * NUM_HEADS + head_M) * 2
        tl.store(note_ptrs, top_M, mask=there_M)
        tl.store(note_ptrs + 1, sum_M, mask=there_M)
        tl.store(out_ptr + place * (NUM_HEADS * HEAD_DIM) + offsets_MD, acc_MD, mask=there_MD)
    else:
        out_ptr += place * (NUM_HEADS * HEAD_DIM)
        tl.store(out_ptr + offsets_MD, result(acc_MD, sum_M).to(dtype), mask=there_MD)


@triton.jit(do_not_specialize=["num_reqs", "table_stride", "entry_table_stride"])
def compressed_attend(
    out_ptr, q_ptr, cache_ptr, table_ptr, entries_ptr, entry_table_ptr, chosen_ptr, sinks_ptr,
    starts_ptr, seq_lens_ptr, notes_ptr, num_reqs, q_stride, table_stride, block_stride,
    entry_table_stride, entry_stride, chosen_stride, NUM_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, WINDOW: tl.constexpr, TOKENS: tl.constexpr, TOP_K: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, SPLIT: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (NUM_HEADS / GROUP, tokens, parts into which tiles of rows are divided).

    Args:
        out_ptr: [tokens, NUM_HEADS, HEAD_DIM]; with SPLIT sums of each part before it, float32.
        notes_ptr: With SPLIT [parts, tokens, NUM_HEADS, 2] float32, each softmax's maximum and sum.
        chosen_ptr: [tokens, TOP_K] int32; what a token chose stands in front. TOP_K is 0 where all
            entries are read.
        TOKENS: Of an entry; 0 for no entries.
    """
    wait(CHAINED)
    group, token, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request, seen = seen_by(token, starts_ptr, seq_lens_ptr, num_reqs, BLOCK_R)
    row_M, channel_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    head_M, there_M, place = group * GROUP + row_M, row_M < GROUP, token.to(tl.int64)
    there_MD = there_M[:, None] & (channel_D < HEAD_DIM)[None, :]
    offsets_MD = head_M[:, None] * HEAD_DIM + channel_D[None, :]
    q_MD = tl.load(q_ptr + place * q_stride + offsets_MD, mask=there_MD, other=0.0)
    acc_MD, top_M, sum_M = fresh(sinks_ptr, head_M, there_M, part == 0, True, BLOCK_D)
    own = tl.where(request < num_reqs, request, 0).to(tl.int64)
    table_ptr += own * table_stride
    whole = entries_of(seen, TOKENS, TOP_K)
    begin = tl.maximum(seen - WINDOW, 0)
    tiles = tl.cdiv(seen - begin, BLOCK_N)
    per = tl.cdiv(tiles + tl.cdiv(whole, BLOCK_N), tl.num_programs(2))
    for tile in range(part * per, tl.minimum(part * per + per, tiles)):
        at_N = begin + tile * BLOCK_N + tl.arange(0, BLOCK_N)
        acc_MD, top_M, sum_M = take_rows(
            acc_MD, top_M, sum_M, q_MD, cache_ptr, table_ptr, at_N // BLOCK_SIZE,
            at_N % BLOCK_SIZE, at_N < seen, block_stride, HEAD_DIM, SCALE,
        )  # fmt: skip
    if TOKENS > 0:
        entry_table_ptr += own * entry_table_stride
        first = tl.maximum(part * per - tiles, 0) * BLOCK_N
        end = tl.minimum(tl.maximum(part * per + per - tiles, 0) * BLOCK_N, whole)
        for at in range(first, end, BLOCK_N):
            entry_N = at + tl.arange(0, BLOCK_N)
            there_N = entry_N < whole
            if TOP_K > 0:
                chosen_ptrs = chosen_ptr + place * chosen_stride + entry_N
                entry_N = tl.load(chosen_ptrs, mask=there_N, other=-1)
                there_N = entry_N >= 0
            last_N = entry_N * TOKENS + TOKENS - 1
            acc_MD, top_M, sum_M = take_rows(
                acc_MD, top_M, sum_M, q_MD, entries_ptr, entry_table_ptr, last_N // BLOCK_SIZE,
                last_N % BLOCK_SIZE // TOKENS, there_N, entry_stride, HEAD_DIM, SCALE,
            )  # fmt: skip
    leave(
        out_ptr, notes_ptr, acc_MD, top_M, sum_M, q_MD.dtype, head_M, there_M, offsets_MD, there_MD,
        place, NUM_HEADS, HEAD_DIM, SPLIT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_reqs", "parts"])
def merge_back(
    out_ptr, sums_ptr, notes_ptr, cos_sin_ptr, starts_ptr, seq_lens_ptr, num_reqs, parts,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Merge the parts of a head of a token, and take the rotation of its position back.

    Grid: (tokens, NUM_HEADS). Shape suffix: S parts, all of them.
    """
    wait(CHAINED)
    token, head, channel_D = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK_D)
    _, seen = seen_by(token, starts_ptr, seq_lens_ptr, num_reqs, BLOCK_R)
    row, there_D = token.to(tl.int64) * NUM_HEADS + head, channel_D < HEAD_DIM
    rows = tl.num_programs(0) * NUM_HEADS
    part_S = tl.arange(0, BLOCK_S)
    there_S, at_S = part_S < parts, part_S.to(tl.int64) * rows + row
    top_S = tl.load(notes_ptr + at_S * 2, mask=there_S, other=float("-inf"))
    sum_S = tl.load(notes_ptr + at_S * 2 + 1, mask=there_S, other=0.0)
    sums_ptrs_SD = sums_ptr + at_S[:, None] * HEAD_DIM + channel_D[None, :]
    sums_SD = tl.load(sums_ptrs_SD, mask=there_S[:, None] & there_D[None, :], other=0.0)
    weight_S = tl.exp2(top_S - tl.max(top_S, 0))
    acc_D = tl.sum(weight_S[:, None] * sums_SD, 0) / tl.sum(weight_S * sum_S, 0)
    row_ptr = cos_sin_ptr + tl.maximum(seen - 1, 0).to(tl.int64) * ROPE_DIM
    turned_D = rotated(acc_D, row_ptr, HEAD_DIM, ROPE_DIM, -1.0)
    out_D = turned_D.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * HEAD_DIM + channel_D, out_D, mask=there_D)


@triton.jit
def mixture_of(
    tokens_ptr, table_ptr, bias_ptr, seen, block_stride, channel_D, HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr, OVERLAP: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return the sum of values, weighted by the softmax of gates, of the tokens in front of
    position `seen`."""
    CHANNELS: tl.constexpr = HEAD_DIM * (1 + OVERLAP)
    REACH: tl.constexpr = GROUP * (1 + OVERLAP)
    own_D = (channel_D < HEAD_DIM)[None, :]
    top_D = tl.full(channel_D.shape, float("-inf"), tl.float32)
    sum_D, acc_D = tl.zeros_like(top_D), tl.zeros_like(top_D)
    # The first group has none before it, so that every pass has a token at least.
    for first in range(tl.maximum(REACH - seen, 0), REACH, BLOCK_N):
        nth_N = first + tl.arange(0, BLOCK_N)
        there_N, at_N = nth_N < REACH, seen - REACH + nth_N
        page_N = tl.load(table_ptr + at_N // BLOCK_SIZE, mask=there_N, other=0).to(tl.int64)
        row_N = page_N * block_stride + at_N % BLOCK_SIZE * (2 * CHANNELS)
        # Of two sets the group before has the first, the entry's own group the second.
        set_N = tl.where(nth_N < GROUP, 0, CHANNELS - HEAD_DIM)
        there_ND = there_N[:, None] & own_D
        inside_ND = set_N[:, None] + channel_D[None, :]
        value_ptrs_ND = tokens_ptr + row_N[:, None] + inside_ND
        value_ND = tl.load(value_ptrs_ND, mask=there_ND, other=0.0).to(tl.float32)
        gate_ND = tl.load(value_ptrs_ND + CHANNELS, mask=there_ND, other=0.0).to(tl.float32)
        bias_ptrs_ND = bias_ptr + (at_N % GROUP * CHANNELS)[:, None] + inside_ND
        gate_ND += tl.load(bias_ptrs_ND, mask=there_ND, other=0.0)
        gate_ND = tl.where(there_N[:, None], gate_ND, float("-inf"))
        new_D = tl.maximum(top_D, tl.max(gate_ND, 0))
        weight_ND, shrink_D = tl.exp(gate_ND - new_D[None, :]), tl.exp(top_D - new_D)
        sum_D = sum_D * shrink_D + tl.sum(weight_ND, 0)
        acc_D = acc_D * shrink_D + tl.sum(weight_ND * value_ND, 0)
        top_D = new_D
    return acc_D / sum_D


@triton.jit
def rotated(x_D, row_ptr, HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, sign=1.0):
    """Rotate the last channels by pairs of neighbors, given cosines then sines; by -1 back."""
    a_P, b_P = tl.split(tl.reshape(x_D, (x_D.shape[0] // 2, 2)))
    pair_P = tl.arange(0, x_D.shape[0] // 2) - (HEAD_DIM - ROPE_DIM) // 2
    turned_P = (pair_P >= 0) & (pair_P < ROPE_DIM // 2)
    cos_P = tl.load(row_ptr + pair_P, mask=turned_P, other=1.0)
    sin_P = sign * tl.load(row_ptr + ROPE_DIM // 2 + pair_P, mask=turned_P, other=0.0)
    pairs = tl.join(a_P * cos_P - b_P * sin_P, b_P * cos_P + a_P * sin_P)
    return tl.reshape(pairs, (x_D.shape[0],))


@triton.jit(do_not_specialize=["num_reqs", "table_stride", "entry_table_stride"])
def compress(
    tokens_ptr, entries_ptr, table_ptr, entry_table_ptr, starts_ptr, seq_lens_ptr, bias_ptr,
    norm_ptr, cos_sin_ptr, num_reqs, table_stride, block_stride, entry_table_stride, entry_stride,
    HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, GROUP: tl.constexpr, OVERLAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, EPS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (tokens,). Caches are dense within a block."""
    wait(CHAINED)
    request, seen = seen_by(tl.program_id(0), starts_ptr, seq_lens_ptr, num_reqs, BLOCK_R)
    if (seen > 0) & (seen % GROUP == 0):
        own, channel_D = request.to(tl.int64), tl.arange(0, BLOCK_D)
        there_D = channel_D < HEAD_DIM
        made_D = mixture_of(
            tokens_ptr, table_ptr + own * table_stride, bias_ptr, seen, block_stride, channel_D,
            HEAD_DIM, GROUP, OVERLAP, BLOCK_SIZE, BLOCK_N,
        )  # fmt: skip
        made_D = tl.where(there_D, made_D, 0.0)
        made_D *= 1.0 / tl.sqrt(tl.sum(made_D * made_D, 0) / HEAD_DIM + EPS)
        made_D *= tl.load(norm_ptr + channel_D, mask=there_D, other=0.0).to(tl.float32)
        made_D = made_D.to(norm_ptr.dtype.element_ty).to(tl.float32)
        row_ptr = cos_sin_ptr + (seen - GROUP).to(tl.int64) * ROPE_DIM
        turned_D = rotated(made_D, row_ptr, HEAD_DIM, ROPE_DIM)
        last = seen - 1
        page = tl.load(entry_table_ptr + own * entry_table_stride + last // BLOCK_SIZE)
        place = page.to(tl.int64) * entry_stride + last % BLOCK_SIZE // GROUP * HEAD_DIM
        out_D = turned_D.to(entries_ptr.dtype.element_ty)
        tl.store(entries_ptr + place + channel_D, out_D, mask=there_D)


@triton.jit
def store_rows(
    rows_ptr, cache_ptr, slots_ptr, row_stride, block_stride, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Write a token's row as it is. Grid: (tokens,)."""
    wait(CHAINED)
    token, channel_D = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_D)
    slot = tl.load(slots_ptr + token)
    place = (slot // BLOCK_SIZE).to(tl.int64) * block_stride + slot % BLOCK_SIZE * WIDTH
    row_D = tl.load(rows_ptr + token * row_stride + channel_D, mask=channel_D < WIDTH, other=0.0)
    tl.store(cache_ptr + place + channel_D, row_D, mask=channel_D < WIDTH)


@triton.jit
def turn_heads(
    x_ptr, cos_sin_ptr, token, position, head_M, sign, token_stride, NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Rotate the last channels of some heads where they lie, by a position or back from it."""
    x_ptrs_M = x_ptr + token * token_stride + head_M * HEAD_DIM + (HEAD_DIM - ROPE_DIM)
    pair_P, row_ptr = tl.arange(0, BLOCK_P), cos_sin_ptr + position.to(tl.int64) * ROPE_DIM
    a_P, b_P, there_MP, a_MP, b_MP = turn(
        x_ptrs_M, head_M < NUM_HEADS, row_ptr, pair_P, ROPE_DIM, True, sign
    )
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    tl.store(x_ptrs_M[:, None] + a_P[None, :], a_MP.to(dtype), mask=there_MP)
    tl.store(x_ptrs_M[:, None] + b_P[None, :], b_MP.to(dtype), mask=there_MP)


@triton.jit
def rotate_and_store(
    q_ptr, row_ptr, cache_ptr, positions_ptr, cos_sin_ptr, slots_ptr, q_stride, row_stride,
    block_stride, NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
    STORED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Rotate heads, and with STORED a token's row on its way to the cache.

    Grid: (tokens, blocks of heads, and one for the row).
    """
    wait(CHAINED)
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions_ptr + token)
    if block * BLOCK_M < NUM_HEADS:
        head_M = block * BLOCK_M + tl.arange(0, BLOCK_M)
        turn_heads(
            q_ptr, cos_sin_ptr, token, position, head_M, 1.0, q_stride, NUM_HEADS, HEAD_DIM,
            ROPE_DIM, BLOCK_P,
        )  # fmt: skip
    elif STORED:
        channel_D = tl.arange(0, BLOCK_D)
        there_D, slot = channel_D < HEAD_DIM, tl.load(slots_ptr + token)
        row_D = tl.load(row_ptr + token * row_stride + channel_D, mask=there_D, other=0.0)
        angle_ptr = cos_sin_ptr + position.to(tl.int64) * ROPE_DIM
        row_D = rotated(row_D.to(tl.float32), angle_ptr, HEAD_DIM, ROPE_DIM)
        # As the model has it, whatever type the cache has.
        row_D = row_D.to(row_ptr.dtype.element_ty).to(cache_ptr.dtype.element_ty)
        place = (slot // BLOCK_SIZE).to(tl.int64) * block_stride + slot % BLOCK_SIZE * HEAD_DIM
        tl.store(cache_ptr + place + channel_D, row_D, mask=there_D)


@triton.jit(do_not_specialize=["num_reqs"])
def rotate_back(
    out_ptr, cos_sin_ptr, starts_ptr, seq_lens_ptr, num_reqs, NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Take the rotation of its position back from each token. Grid: (tokens, blocks of heads)."""
    wait(CHAINED)
    token = tl.program_id(0)
    _, seen = seen_by(token, starts_ptr, seq_lens_ptr, num_reqs, BLOCK_R)
    head_M = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    turn_heads(
        out_ptr, cos_sin_ptr, token.to(tl.int64), tl.maximum(seen - 1, 0), head_M, -1.0,
        NUM_HEADS * HEAD_DIM, NUM_HEADS, HEAD_DIM, ROPE_DIM, BLOCK_P,
    )  # fmt: skip
