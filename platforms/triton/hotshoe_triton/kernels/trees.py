"""Paged attention for steps with trees of drafts: a tile of queries reads each key once.

Tiles are those of `prefill.py`: the query heads of one KV head, for neighboring tokens of one
request, so that most trees are one tile or two. Where a step has few tiles, several programs share
the keys of each, and `join_pieces` averages what they found. A node sees all keys before its tree,
and of those behind the ones that its line of 64 bits names.

Shape suffixes: P pieces; others as in attention.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.attention import BOTTOM, absorb, fresh, of_head, result
from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.prefill import request_of_tile


@triton.jit
def key_tiles(
    first_place, seq_len, first_node, least, BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Return the bounds of a program's tiles of keys, for queries from a place on: those low..full
    need no mask, and those full..high need one. Programs share them alike, `least` or more each."""
    pieces = tl.num_programs(2)
    share = tl.maximum((tl.cdiv(seq_len, BLOCK_N) + pieces - 1) // pieces, least)
    low = tl.program_id(2) * share
    last_place = tl.minimum(first_place + BLOCK_Q, seq_len) - 1
    high = tl.maximum(tl.minimum(low + share, last_place // BLOCK_N + 1), low)
    full = tl.minimum(first_place + 1, first_node) // BLOCK_N
    return low, tl.minimum(tl.maximum(full, low), high), high


@triton.jit
def leave(
    out_ptr, partial_ptr, stats_ptr, acc_MD, top_M, sum_M, token_M, head_M, there_M, num_tokens,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Store the results of a tile's rows, or what this piece has of them.

    Args:
        partial_ptr: [pieces, num_tokens, NUM_HEADS, HEAD_DIM] float32, averages times their sums.
        stats_ptr: [pieces, num_tokens, NUM_HEADS, 2] float32, the maximum and the sum of weights;
            a sum of 0 where a piece has no keys.
    """
    channel_D = tl.arange(0, acc_MD.shape[1])
    there_MD = there_M[:, None] & (channel_D < HEAD_DIM)[None, :]
    if tl.num_programs(2) == 1:
        offsets_MD = ((token_M * NUM_HEADS + head_M) * HEAD_DIM)[:, None] + channel_D[None, :]
        out_MD = result(acc_MD, sum_M).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + offsets_MD, out_MD, mask=there_MD)
    else:
        row_M = (tl.program_id(2).to(tl.int64) * num_tokens + token_M) * NUM_HEADS + head_M
        tl.store(partial_ptr + row_M[:, None] * HEAD_DIM + channel_D[None, :], acc_MD, there_MD)
        tl.store(stats_ptr + row_M * 2, top_M, there_M)
        tl.store(stats_ptr + row_M * 2 + 1, sum_M, there_M)


@triton.jit(do_not_specialize=["num_reqs", "table_stride", "least"])
def tree_attention(
    out_ptr, q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, starts_ptr, seq_lens_ptr,
    sinks_ptr, counts_ptr, lines_ptr, partial_ptr, stats_ptr, num_reqs, least, q_stride,
    table_stride, block_stride,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, SCALES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (num_kv_heads, num_tokens // BLOCK_Q + num_reqs, pieces). A piece is an equal share of
    a request's tiles of keys, `least` of them or more. With one piece the result is stored.

    Args:
        counts_ptr, lines_ptr: [num_reqs] int32 and [num_tokens] int64, as in `TreeNodes`.
        partial_ptr, stats_ptr: As for `leave`.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    wait(CHAINED)
    kv_head, tile, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request = request_of_tile(tile, starts_ptr, num_reqs, BLOCK_Q, BLOCK_R)
    start = tl.load(starts_ptr + request)
    end = tl.load(starts_ptr + request + 1)
    first_token = start + (tile - start // BLOCK_Q - request) * BLOCK_Q
    if first_token >= end:
        return
    seq_len = tl.load(seq_lens_ptr + request)
    first_node = seq_len - tl.load(counts_ptr + request)
    row_M, channel_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    at_M = first_token + row_M // GROUP
    head_M = kv_head * GROUP + row_M % GROUP
    there_M = (row_M < BLOCK_Q * GROUP) & (at_M < end)
    place_M = tl.where(there_M, seq_len - end + at_M, -1)
    line_M = tl.load(lines_ptr + at_M, mask=there_M, other=0)
    there_MD = there_M[:, None] & (channel_D < HEAD_DIM)[None, :]
    token_M = at_M.to(tl.int64)
    q_offsets_M = token_M * q_stride + head_M * HEAD_DIM
    q_MD = tl.load(q_ptr + q_offsets_M[:, None] + channel_D[None, :], mask=there_MD, other=0.0)

    acc_MD, top_M, sum_M = fresh(sinks_ptr, head_M, there_M, piece == 0, SINKS, BLOCK_D)
    table_ptr += request.to(tl.int64) * table_stride
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr = of_head(
        k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, kv_head, BLOCK_SIZE, HEAD_DIM, SCALES
    )
    low, full, high = key_tiles(
        seq_len - end + first_token, seq_len, first_node, least, BLOCK_Q, BLOCK_N
    )
    acc_MD, top_M, sum_M = absorb(
        acc_MD, top_M, sum_M, q_MD, place_M, row_M, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
        table_ptr, low, full, seq_len, block_stride, False, HEAD_DIM, BLOCK_SIZE, SCALE, 0,
        SOFTCAP, BLOCK_N, BLOCK_D, SCALES, False,
    )  # fmt: skip
    acc_MD, top_M, sum_M = absorb(
        acc_MD, top_M, sum_M, q_MD, place_M, row_M, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
        table_ptr, full, high, seq_len, block_stride, True, HEAD_DIM, BLOCK_SIZE,
        SCALE, 0, SOFTCAP, BLOCK_N, BLOCK_D, SCALES, False, line_M, first_node,
    )  # fmt: skip
    leave(
        out_ptr, partial_ptr, stats_ptr, acc_MD, top_M, sum_M, token_M, head_M, there_M,
        tl.load(starts_ptr + num_reqs), NUM_HEADS, HEAD_DIM,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_reqs", "pieces"])
def join_pieces(
    out_ptr, partial_ptr, stats_ptr, starts_ptr, num_reqs, pieces, NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (num_tokens, NUM_HEADS). Arguments as for `tree_attention`."""
    wait(CHAINED)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_tokens = tl.load(starts_ptr + num_reqs).to(tl.int64)
    if token >= num_tokens:
        return
    channel_D = tl.arange(0, BLOCK_D)
    acc_D = tl.zeros([BLOCK_D], tl.float32)
    top, total = tl.full([], BOTTOM, tl.float32), tl.zeros([], tl.float32)
    for first in range(0, pieces, BLOCK_P):
        piece_P = first + tl.arange(0, BLOCK_P)
        row_P = (piece_P * num_tokens + token) * NUM_HEADS + head
        there_P = piece_P < pieces
        top_P = tl.load(stats_ptr + row_P * 2, mask=there_P, other=BOTTOM)
        sum_P = tl.load(stats_ptr + row_P * 2 + 1, mask=there_P, other=0.0)
        there_P = sum_P > 0
        there_PD = there_P[:, None] & (channel_D < HEAD_DIM)[None, :]
        offsets_PD = row_P[:, None] * HEAD_DIM + channel_D[None, :]
        piece_PD = tl.load(partial_ptr + offsets_PD, mask=there_PD, other=0.0)
        new_top = tl.maximum(top, tl.max(top_P, 0))
        factor_P = tl.exp2(top_P - new_top)
        shrink = tl.exp2(top - new_top)
        acc_D = acc_D * shrink + tl.sum(piece_PD * factor_P[:, None], 0)
        total = total * shrink + tl.sum(sum_P * factor_P, 0)
        top = new_top
    out_D = acc_D / tl.where(total > 0, total, 1.0)
    out_ptrs_D = out_ptr + (token * NUM_HEADS + head) * HEAD_DIM + channel_D
    tl.store(out_ptrs_D, out_D.to(out_ptr.dtype.element_ty), mask=channel_D < HEAD_DIM)
