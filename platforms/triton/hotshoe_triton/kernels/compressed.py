"""Attention to a window of rows and to entries, each row key and value of all heads.

A program takes some heads of one token. Shape suffixes: M heads, N rows, D channels.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.attention import fresh, load_rows, result
from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.indexer import seen_by
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


@triton.jit(do_not_specialize=["num_reqs", "table_stride", "entry_table_stride"])
def compressed_attend(
    out_ptr, q_ptr, cache_ptr, table_ptr, entries_ptr, entry_table_ptr, chosen_ptr, sinks_ptr,
    starts_ptr, seq_lens_ptr, num_reqs, q_stride, table_stride, block_stride, entry_table_stride,
    entry_stride, chosen_stride, NUM_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, WINDOW: tl.constexpr, TOKENS: tl.constexpr, TOP_K: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (NUM_HEADS / GROUP, tokens).

    Args:
        chosen_ptr: [tokens, TOP_K] int32; what a token chose stands in front. TOP_K is 0 where all
            entries are read.
        TOKENS: Of an entry; 0 for no entries.
    """
    wait(CHAINED)
    group, token = tl.program_id(0), tl.program_id(1)
    request, seen = seen_by(token, starts_ptr, seq_lens_ptr, num_reqs, BLOCK_R)
    row_M, channel_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    head_M, there_M, place = group * GROUP + row_M, row_M < GROUP, token.to(tl.int64)
    there_MD = there_M[:, None] & (channel_D < HEAD_DIM)[None, :]
    offsets_MD = head_M[:, None] * HEAD_DIM + channel_D[None, :]
    q_MD = tl.load(q_ptr + place * q_stride + offsets_MD, mask=there_MD, other=0.0)
    acc_MD, top_M, sum_M = fresh(sinks_ptr, head_M, there_M, True, True, BLOCK_D)
    own = tl.where(request < num_reqs, request, 0).to(tl.int64)
    table_ptr += own * table_stride
    for first in range(tl.maximum(seen - WINDOW, 0), seen, BLOCK_N):
        at_N = first + tl.arange(0, BLOCK_N)
        acc_MD, top_M, sum_M = take_rows(
            acc_MD, top_M, sum_M, q_MD, cache_ptr, table_ptr, at_N // BLOCK_SIZE,
            at_N % BLOCK_SIZE, at_N < seen, block_stride, HEAD_DIM, SCALE,
        )  # fmt: skip
    if TOKENS > 0:
        entry_table_ptr += own * entry_table_stride
        whole = seen // TOKENS
        if TOP_K > 0:
            whole = tl.minimum(whole, TOP_K)
        for first in range(0, whole, BLOCK_N):
            entry_N = first + tl.arange(0, BLOCK_N)
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
    out_ptr += place * (NUM_HEADS * HEAD_DIM)
    tl.store(out_ptr + offsets_MD, result(acc_MD, sum_M).to(q_MD.dtype), mask=there_MD)
