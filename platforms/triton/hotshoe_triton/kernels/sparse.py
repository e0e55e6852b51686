"""Latent attention over chosen rows of a paged cache: each query gathers rows of its own.

A program takes some heads of one token. Where tokens are few, several programs share the rows that
one has chosen, and the last of them to end joins their results, as those of `decode.py` do.

Shape suffixes as in `latent.py`.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.attention import fresh, load_rows, result
from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.decode import deliver_piece
from hotshoe_triton.kernels.indexer import seen_by
from hotshoe_triton.kernels.latent import load_queries, mix_rows, score_rows, widened


@triton.jit
def gathered(
    cache_ptr, keys_ptr, scales_ptr, at_N, table_ptr, block_stride, keys_stride,
    LATENT: tl.constexpr, TURNED: tl.constexpr, WIDTH: tl.constexpr, KEY_WIDTH: tl.constexpr,
    KEY_AT: tl.constexpr, SCALED: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Load the parts of the rows at places of a sequence, zeros where a place is negative."""
    channel_L, channel_T, there_N = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_T), at_N >= 0
    block_N = tl.load(table_ptr + at_N // BLOCK_SIZE, mask=there_N, other=0).to(tl.int64)
    inside_N = at_N % BLOCK_SIZE
    rows_N = block_N * block_stride + inside_N * WIDTH
    latent_ptrs = rows_N[:, None] + channel_L[None, :]
    latent_NL = load_rows(cache_ptr, latent_ptrs, there_N, channel_L, True, LATENT)
    keys_N = block_N * keys_stride + inside_N * KEY_WIDTH
    key_ptrs = keys_N[:, None] + channel_T[None, :] + KEY_AT
    key_NT = load_rows(keys_ptr, key_ptrs, there_N, channel_T, True, TURNED)
    scale_N = rows_N
    if SCALED:
        scale_ptrs = scales_ptr + block_N * (block_stride // 4) + inside_N * (WIDTH // 4)
        scale_N = tl.load(scale_ptrs + LATENT // 4, mask=there_N, other=0.0)
    latent_NL, scale_N = widened(latent_NL, scale_N, key_NT.dtype)
    return latent_NL, key_NT, scale_N


@triton.jit(do_not_specialize=["num_reqs", "table_stride"])
def sparse_attend(
    out_ptr, wide_ptr, q_ptr, cache_ptr, keys_ptr, scales_ptr, chosen_ptr, table_ptr, starts_ptr,
    seq_lens_ptr, partial_ptr, stats_ptr, counter_ptr, num_reqs, share, q_stride, table_stride,
    block_stride, keys_stride, NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, LATENT: tl.constexpr,
    NOPE: tl.constexpr, TURNED: tl.constexpr, WIDTH: tl.constexpr, KEY_WIDTH: tl.constexpr,
    KEY_AT: tl.constexpr, SCALED: tl.constexpr, BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_P: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (NUM_HEADS / GROUP, tokens, pieces); each piece takes `share` of the chosen rows.

    Args:
        chosen_ptr: [tokens, TOP_K] int32; what a token chose stands in front.
        partial_ptr, stats_ptr: As for `decode_attention`, for tokens * pieces programs.
        counter_ptr: [tokens, NUM_HEADS / GROUP] int32, zero before and after.
    """
    GROUPS: tl.constexpr = NUM_HEADS // GROUP
    wait(CHAINED)
    group, token, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request, seen = seen_by(token, starts_ptr, seq_lens_ptr, num_reqs, BLOCK_R)
    count = tl.minimum(seen, TOP_K)
    pieces = tl.cdiv(count, share)
    if piece >= pieces:
        return
    row_M = tl.arange(0, BLOCK_M)
    head_M, there_M, place = group * GROUP + row_M, row_M < GROUP, token.to(tl.int64)
    wide_ML, turned_MT = load_queries(
        wide_ptr, q_ptr, place, head_M, there_M, q_stride,
        NUM_HEADS, LATENT, NOPE, TURNED, BLOCK_L, BLOCK_T,
    )  # fmt: skip
    acc_ML, top_M, sum_M = fresh(q_ptr, head_M, there_M, False, False, BLOCK_L)
    table_ptr += request.to(tl.int64) * table_stride
    end = tl.minimum(count, (piece + 1) * share)
    for first in range(piece * share, end, BLOCK_N):
        column_N = first + tl.arange(0, BLOCK_N)
        at_N = tl.load(chosen_ptr + place * TOP_K + column_N, mask=column_N < end, other=-1)
        latent_NL, key_NT, scale_N = gathered(
            cache_ptr, keys_ptr, scales_ptr, at_N, table_ptr, block_stride, keys_stride, LATENT,
            TURNED, WIDTH, KEY_WIDTH, KEY_AT, SCALED, BLOCK_SIZE, BLOCK_L, BLOCK_T,
        )  # fmt: skip
        scores_MN = score_rows(wide_ML, turned_MT, latent_NL, key_NT, scale_N, SCALED)
        scores_MN = tl.where((at_N >= 0)[None, :], scores_MN, float("-inf"))
        acc_ML, top_M, sum_M = mix_rows(
            acc_ML, top_M, sum_M, scores_MN, latent_NL, scale_N, SCALE, SCALED
        )
    row_ptr = out_ptr + (place * NUM_HEADS + group * GROUP) * LATENT
    if pieces == 1:
        channel_L = tl.arange(0, BLOCK_L)
        there_ML = there_M[:, None] & (channel_L < LATENT)[None, :]
        offsets_ML = row_M[:, None] * LATENT + channel_L[None, :]
        tl.store(row_ptr + offsets_ML, result(acc_ML, sum_M).to(wide_ML.dtype), mask=there_ML)
    else:
        program = token * tl.num_programs(2)
        deliver_piece(
            row_ptr, partial_ptr, stats_ptr, counter_ptr + token * GROUPS + group,
            acc_ML, top_M, sum_M, group, (program + piece) * 2 + (piece == 0).to(tl.int32),
            program, program + pieces - 1,
            GROUPS, GROUP, LATENT, BLOCK_M, BLOCK_G, BLOCK_P, BLOCK_L,
        )  # fmt: skip
