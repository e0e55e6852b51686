"""Paged attention whose scores have logits of relative positions.

Tiles are those of `prefill.py`. Where a step has few of them, programs share the keys of each as in
`trees.py`. The logits of each token and head lie in a row, by distance. Only tiles near the
diagonal read them: a key at EXTENT or more has none.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.attention import absorb, fresh, of_head
from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.prefill import request_of_tile
from hotshoe_triton.kernels.trees import leave


@triton.jit
def key_tiles(
    first_place, seq_len, least, WINDOW: tl.constexpr, EXTENT: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return the bounds of a program's tiles of keys, for queries from a place on: those low..near
    have no logits, and those near..high need a mask. Programs share them alike, `least` or more
    each."""
    pieces = tl.num_programs(2)
    share = tl.maximum((tl.cdiv(seq_len, BLOCK_N) + pieces - 1) // pieces, least)
    low = tl.program_id(2) * share
    last_place = tl.minimum(first_place + BLOCK_Q, seq_len) - 1
    high = tl.minimum(low + share, last_place // BLOCK_N + 1)
    if WINDOW > 0:
        low = tl.maximum(low, tl.maximum(first_place - WINDOW + 1, 0) // BLOCK_N)
    high = tl.maximum(high, low)
    near = tl.maximum(first_place - EXTENT + 1, 0) // BLOCK_N
    return low, tl.minimum(tl.maximum(near, low), high), high


@triton.jit(do_not_specialize=["num_reqs", "table_stride", "least"])
def relative_attention(
    out_ptr, q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, starts_ptr, seq_lens_ptr,
    logits_ptr, partial_ptr, stats_ptr, num_reqs, least, q_stride, table_stride, block_stride,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, WINDOW: tl.constexpr, SCALES: tl.constexpr,
    EXTENT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (num_kv_heads, num_tokens // BLOCK_Q + num_reqs, pieces), as in `trees.py`.

    Args:
        logits_ptr: [num_tokens, NUM_HEADS, EXTENT] float32, by distance.
        partial_ptr, stats_ptr: As for `leave`.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    wait(CHAINED)
    kv_head, tile = tl.program_id(0), tl.program_id(1)
    request = request_of_tile(tile, starts_ptr, num_reqs, BLOCK_Q, BLOCK_R)
    start, end = tl.load(starts_ptr + request), tl.load(starts_ptr + request + 1)
    first_token = start + (tile - start // BLOCK_Q - request) * BLOCK_Q
    if first_token >= end:
        return
    seq_len = tl.load(seq_lens_ptr + request)
    row_M, channel_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    at_M, head_M = first_token + row_M // GROUP, kv_head * GROUP + row_M % GROUP
    there_M = (row_M < BLOCK_Q * GROUP) & (at_M < end)
    place_M = tl.where(there_M, seq_len - end + at_M, -1)
    there_MD = there_M[:, None] & (channel_D < HEAD_DIM)[None, :]
    token_M = at_M.to(tl.int64)
    q_offsets_M = token_M * q_stride + head_M * HEAD_STRIDE
    q_MD = tl.load(q_ptr + q_offsets_M[:, None] + channel_D[None, :], mask=there_MD, other=0.0)
    row_ptr_M = logits_ptr + (token_M * NUM_HEADS + head_M) * EXTENT

    acc_MD, top_M, sum_M = fresh(q_ptr, head_M, there_M, False, False, BLOCK_D)
    table_ptr += request.to(tl.int64) * table_stride
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr = of_head(
        k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, kv_head, BLOCK_SIZE, HEAD_DIM, SCALES
    )
    place = seq_len - end + first_token
    low, near, high = key_tiles(place, seq_len, least, WINDOW, EXTENT, BLOCK_Q, BLOCK_N)
    acc_MD, top_M, sum_M = absorb(
        acc_MD, top_M, sum_M, q_MD, place_M, row_M, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
        table_ptr, low, near, seq_len, block_stride, WINDOW > 0, HEAD_DIM, BLOCK_SIZE, SCALE,
        WINDOW, 0.0, BLOCK_N, BLOCK_D, SCALES, False,
    )  # fmt: skip
    acc_MD, top_M, sum_M = absorb(
        acc_MD, top_M, sum_M, q_MD, place_M, row_M, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
        table_ptr, near, high, seq_len, block_stride, True, HEAD_DIM, BLOCK_SIZE, SCALE, WINDOW,
        0.0, BLOCK_N, BLOCK_D, SCALES, False, None, None, row_ptr_M, EXTENT,
    )  # fmt: skip
    leave(
        out_ptr, partial_ptr, stats_ptr, acc_MD, top_M, sum_M, token_M, head_M, there_M,
        tl.load(starts_ptr + num_reqs), NUM_HEADS, HEAD_DIM,
    )  # fmt: skip
