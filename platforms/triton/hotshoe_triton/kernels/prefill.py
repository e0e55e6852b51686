"""Paged causal attention for requests with several queries in a step.

One program computes a tile of BLOCK_M rows: the query heads of one KV head, for as many
neighboring tokens as fit. Which request a tile belongs to is found on the device, so the host
needs no lengths: request i owns the tiles from query_start[i] // BLOCK_Q + i on, which always
suffices for its queries.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.attention import absorb, fresh, of_head, result, slopes_of
from hotshoe_triton.kernels.chain import wait


@triton.jit
def request_of_tile(tile, starts_ptr, num_reqs, BLOCK_Q: tl.constexpr, BLOCK_R: tl.constexpr):
    """Return the last request whose first tile is at or before this one."""
    count = tl.zeros((), tl.int32)
    for first in range(0, num_reqs, BLOCK_R):
        index_R = first + tl.arange(0, BLOCK_R)
        there_R = index_R < num_reqs
        start_R = tl.load(starts_ptr + index_R, mask=there_R, other=0)
        count += tl.sum((there_R & (start_R // BLOCK_Q + index_R <= tile)).to(tl.int32), 0)
    return count - 1


@triton.jit
def key_tiles(
    first_pos, last_pos, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Return the bounds of the tiles of keys that queries at first_pos..last_pos see.

    Tiles low..full_low and full_high..high need a mask, those between need none.
    """
    high = last_pos // BLOCK_N + 1
    low = first_pos * 0
    full_low = low
    if WINDOW > 0:
        low = tl.maximum(first_pos - WINDOW + 1, 0) // BLOCK_N
        full_low = tl.minimum(tl.cdiv(tl.maximum(last_pos - WINDOW + 1, 0), BLOCK_N), high)
    return low, full_low, tl.maximum((first_pos + 1) // BLOCK_N, full_low), high


@triton.jit(do_not_specialize=["num_reqs", "table_stride"])
def prefill_attention(
    out_ptr, q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr, starts_ptr, seq_lens_ptr,
    sinks_ptr, num_reqs, q_stride, table_stride, block_stride,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SCALE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr,
    SCALES: tl.constexpr, SLOPE: tl.constexpr, SLOPE_HEADS: tl.constexpr, SLOPE_FIRST: tl.constexpr,
    SLOPE_FACTOR: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (num_kv_heads, num_tokens // BLOCK_Q + num_reqs). Requests with one query are left to
    the decode kernel. Tiles with most keys start first."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    wait(CHAINED)
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    request = request_of_tile(tile, starts_ptr, num_reqs, BLOCK_Q, BLOCK_R)
    start = tl.load(starts_ptr + request)
    num_queries = tl.load(starts_ptr + request + 1) - start
    first_query = (tile - start // BLOCK_Q - request) * BLOCK_Q
    if (num_queries <= 1) | (first_query >= num_queries):
        return
    seq_len = tl.load(seq_lens_ptr + request)
    first_pos = seq_len - num_queries + first_query
    row_M, channel_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    query_M = row_M // GROUP
    head_M = kv_head * GROUP + row_M % GROUP
    slope_M = slopes_of(head_M, SLOPE, SLOPE_HEADS, SLOPE_FIRST, SLOPE_FACTOR)
    there_M = (query_M < BLOCK_Q) & (first_query + query_M < num_queries)
    position_M = tl.where(there_M, first_pos + query_M, -1)
    there_MD = there_M[:, None] & (channel_D < HEAD_DIM)[None, :]
    token_M = (start + first_query + query_M).to(tl.int64)
    q_offsets_M = token_M * q_stride + head_M * HEAD_DIM
    q_MD = tl.load(q_ptr + q_offsets_M[:, None] + channel_D[None, :], mask=there_MD, other=0.0)

    acc_MD, top_M, sum_M = fresh(sinks_ptr, head_M, there_M, True, SINKS, BLOCK_D)
    table_ptr += request.to(tl.int64) * table_stride
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr = of_head(
        k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, kv_head, BLOCK_SIZE, HEAD_DIM, SCALES
    )
    last_pos = tl.minimum(first_pos + BLOCK_Q, seq_len) - 1
    low, full_low, full_high, high = key_tiles(first_pos, last_pos, WINDOW, BLOCK_N)
    if WINDOW > 0:
        acc_MD, top_M, sum_M = absorb(
            acc_MD, top_M, sum_M, q_MD, position_M, slope_M, k_ptr, v_ptr, k_scale_ptr,
            v_scale_ptr, table_ptr, low, full_low, seq_len, block_stride, True, HEAD_DIM,
            BLOCK_SIZE, SCALE, WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, SCALES, SLOPE > 0,
        )  # fmt: skip
    acc_MD, top_M, sum_M = absorb(
        acc_MD, top_M, sum_M, q_MD, position_M, slope_M, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
        table_ptr, full_low, full_high, seq_len, block_stride, False, HEAD_DIM, BLOCK_SIZE, SCALE,
        WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, SCALES, SLOPE > 0,
    )  # fmt: skip
    acc_MD, top_M, sum_M = absorb(
        acc_MD, top_M, sum_M, q_MD, position_M, slope_M, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
        table_ptr, full_high, high, seq_len, block_stride, True, HEAD_DIM, BLOCK_SIZE, SCALE,
        WINDOW, SOFTCAP, BLOCK_N, BLOCK_D, SCALES, SLOPE > 0,
    )  # fmt: skip
    out_ptrs_M = out_ptr + (token_M * NUM_HEADS + head_M) * HEAD_DIM
    out_ptrs_MD = out_ptrs_M[:, None] + channel_D[None, :]
    tl.store(out_ptrs_MD, result(acc_MD, sum_M).to(out_ptr.dtype.element_ty), mask=there_MD)
