"""What both attention kernels share: scores, masks, the tiles of a paged cache, online softmax.

Scores live in the base-2 domain, so that every exponential is one instruction. Masked scores are
-inf while the running maximum starts at a finite bottom, so no difference of infinities arises.
Source of the online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867.

Shape suffixes: M rows of a query tile (tokens x heads of one KV head), N keys, D channels.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
BOTTOM = tl.constexpr(-1.0e30)


@triton.jit
def row_offsets(
    table_ptr,
    tile,
    seq_len,
    block_stride,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Return the int64 offsets [N] of a tile's token rows within one head's planes."""
    lane = tl.arange(0, BLOCK_N)
    if BLOCK_N <= BLOCK_SIZE:
        first = tile * BLOCK_N
        page = tl.load(table_ptr + first // BLOCK_SIZE).to(tl.int64)
        return page * block_stride + (first % BLOCK_SIZE + lane) * HEAD_DIM
    else:
        key = tile * BLOCK_N + lane
        pages = tl.load(table_ptr + key // BLOCK_SIZE, mask=key < seq_len, other=0).to(tl.int64)
        return pages * block_stride + (key % BLOCK_SIZE) * HEAD_DIM


@triton.jit
def base2_scores(qk_MN, SCALE: tl.constexpr, SOFTCAP: tl.constexpr):
    """Scale, cap, and move to the base-2 domain; tanh by one exponential."""
    if SOFTCAP > 0:
        grown = tl.exp2(qk_MN * (2 * LOG2E * SCALE / SOFTCAP))
        scores = (1 - 2 / (grown + 1)) * (SOFTCAP * LOG2E)
    else:
        scores = qk_MN * (SCALE * LOG2E)
    return scores


@triton.jit
def absorb(
    acc_MD, top_M, sum_M, q_MD, position_M, k_ptr, v_ptr, table_ptr, tile, seq_len, block_stride,
    MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SCALE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Take one tile of keys and values into the running softmax.

    Args:
        acc_MD, top_M, sum_M: Weighted values, maximum, and sum of weights so far, float32.
        position_M: Position of each row's query; -1 sees nothing.
        MASKED: False where every row sees every key of the tile.
    """
    rows_N = row_offsets(table_ptr, tile, seq_len, block_stride, BLOCK_N, BLOCK_SIZE, HEAD_DIM)
    channel_D = tl.arange(0, BLOCK_D)
    offsets_ND = rows_N[:, None] + channel_D[None, :]
    key_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    if MASKED:
        there_ND = (key_N < seq_len)[:, None] & (channel_D < HEAD_DIM)[None, :]
        k_ND = tl.load(k_ptr + offsets_ND, mask=there_ND, other=0.0)
    elif HEAD_DIM != BLOCK_D:
        there_ND = (channel_D < HEAD_DIM)[None, :]
        k_ND = tl.load(k_ptr + offsets_ND, mask=there_ND, other=0.0)
    else:
        k_ND = tl.load(k_ptr + offsets_ND)
    qk_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee")
    scores_MN = base2_scores(qk_MN, SCALE, SOFTCAP)
    if MASKED:
        seen_MN = key_N[None, :] <= position_M[:, None]
        if WINDOW > 0:
            seen_MN &= key_N[None, :] > position_M[:, None] - WINDOW
        scores_MN = tl.where(seen_MN, scores_MN, float("-inf"))
    new_top_M = tl.maximum(top_M, tl.max(scores_MN, 1))
    weights_MN = tl.exp2(scores_MN - new_top_M[:, None])
    shrink_M = tl.exp2(top_M - new_top_M)
    if MASKED or HEAD_DIM != BLOCK_D:
        v_ND = tl.load(v_ptr + offsets_ND, mask=there_ND, other=0.0)
    else:
        v_ND = tl.load(v_ptr + offsets_ND)
    acc_MD = acc_MD * shrink_M[:, None]
    acc_MD = tl.dot(weights_MN.to(v_ND.dtype), v_ND, acc_MD, input_precision="ieee")
    return acc_MD, new_top_M, sum_M * shrink_M + tl.sum(weights_MN, 1)
