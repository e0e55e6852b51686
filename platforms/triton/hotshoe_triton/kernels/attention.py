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
def pages_of(table_ptr, tile, end, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Return the pages of a tile's keys, one number or [N]; page 0 from key `end` on."""
    if BLOCK_N <= BLOCK_SIZE:
        key = tile * BLOCK_N
    else:
        key = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    return tl.load(table_ptr + key // BLOCK_SIZE, mask=key < end, other=0)


@triton.jit
def row_offsets(
    pages, tile, block_stride, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Return the int64 offsets [N] of a tile's token rows within one head's planes."""
    lane_N = tl.arange(0, BLOCK_N)
    if BLOCK_N <= BLOCK_SIZE:
        inside_N = (tile * BLOCK_N) % BLOCK_SIZE + lane_N
    else:
        inside_N = lane_N % BLOCK_SIZE
    return pages.to(tl.int64) * block_stride + inside_N * HEAD_DIM


@triton.jit
def scaled(qk_MN, SCALE: tl.constexpr, SOFTCAP: tl.constexpr):
    """Return scores in the base-2 domain but for a factor, and that factor.

    Without a cap the factor is left to the exponential, where it costs nothing.
    """
    if SOFTCAP > 0:
        grown_MN = tl.exp2(qk_MN * (2 * LOG2E * SCALE / SOFTCAP))
        scores_MN = (1 - 2 / (grown_MN + 1)) * (SOFTCAP * LOG2E)
        factor: tl.constexpr = 1.0
    else:
        scores_MN = qk_MN
        factor: tl.constexpr = SCALE * LOG2E
    return scores_MN, factor


@triton.jit
def slopes_of(
    head_M, SLOPE: tl.constexpr, SLOPE_HEADS: tl.constexpr, SLOPE_FIRST: tl.constexpr,
    SLOPE_FACTOR: tl.constexpr,
):  # fmt: skip
    """Return what a token of distance takes off each row's scores (ALiBi), before their factor;
    something of no use with a SLOPE of 0."""
    slope_M = head_M.to(tl.float32)
    if SLOPE > 0:
        index_M = slope_M + SLOPE_FIRST
        before_M = index_M < SLOPE_HEADS
        number_M = tl.where(before_M, index_M + 1.0, index_M - SLOPE_HEADS + 0.5)
        slope_M = tl.exp2(-SLOPE * number_M) * SLOPE_FACTOR
    return slope_M


@triton.jit
def load_rows(ptr, offsets_ND, there_N, channel_D, MASKED: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Load a tile of keys or values; zeros where a mask forbids."""
    BLOCK_D: tl.constexpr = channel_D.shape[0]
    if MASKED:
        there_ND = there_N[:, None] & (channel_D < HEAD_DIM)[None, :]
        rows_ND = tl.load(ptr + offsets_ND, mask=there_ND, other=0.0)
    elif HEAD_DIM != BLOCK_D:
        rows_ND = tl.load(ptr + offsets_ND, mask=(channel_D < HEAD_DIM)[None, :], other=0.0)
    else:
        rows_ND = tl.load(ptr + offsets_ND)
    return rows_ND


@triton.jit
def fresh(sinks_ptr, head_M, there_M, with_sink, SINKS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return accumulator, maximum and sum of a softmax over nothing, or over the sinks alone."""
    acc_MD = tl.zeros([head_M.shape[0], BLOCK_D], tl.float32)
    top_M = tl.zeros_like(head_M).to(tl.float32) + BOTTOM
    sum_M = tl.zeros_like(top_M)
    if SINKS and with_sink:
        top_M = tl.load(sinks_ptr + head_M, mask=there_M, other=0.0) * LOG2E
        sum_M += 1.0
    return acc_MD, top_M, sum_M


@triton.jit
def result(acc_MD, sum_M):
    """Return the softmax's average; zeros where nothing was seen."""
    return acc_MD / tl.where(sum_M > 0, sum_M, 1.0)[:, None]


@triton.jit
def of_head(k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, kv_head, BLOCK_SIZE: tl.constexpr,
            HEAD_DIM: tl.constexpr, SCALES: tl.constexpr):  # fmt: skip
    """Return the pointers to one KV head's part of the first block."""
    plane = kv_head.to(tl.int64) * (BLOCK_SIZE * HEAD_DIM)
    if SCALES == 2:
        k_scale_ptr += kv_head * BLOCK_SIZE
        v_scale_ptr += kv_head * BLOCK_SIZE
    return k_ptr + plane, v_ptr + plane, k_scale_ptr, v_scale_ptr


@triton.jit
def scales_of(scale_ptr, at_N, there_N, MASKED: tl.constexpr):
    """Return the scale of each key, 0 behind the last one, where anything may lie, NaN too."""
    if MASKED:
        scale_N = tl.load(scale_ptr + at_N, mask=there_N, other=0.0)
    else:
        scale_N = tl.load(scale_ptr + at_N)
    return scale_N


@triton.jit
def multiplied(x_MN, scale_ptr, at_N, there_N, MASKED: tl.constexpr, SCALES: tl.constexpr):
    """Return columns times the scales of their keys; SCALES: 0 none, 1 one for all, 2 of each."""
    if SCALES == 1:
        x_MN = x_MN * tl.load(scale_ptr)
    if SCALES == 2:
        x_MN = x_MN * scales_of(scale_ptr, at_N, there_N, MASKED)[None, :]
    return x_MN


@triton.jit
def weighed(acc_MD, weights_MN, v_ND, scale_ptr, at_N, there_N, MASKED: tl.constexpr,
            SCALES: tl.constexpr):  # fmt: skip
    """Return the sum and values times their weights and scales.

    Scaled weights may be too small for float16. There the largest scale of a tile is a factor of
    its weighted values, and weights have shares of it.
    """
    kind: tl.constexpr = v_ND.dtype
    if kind == tl.float16 and SCALES > 0:
        if SCALES == 1:
            largest = tl.load(scale_ptr)
        else:
            scale_N = scales_of(scale_ptr, at_N, there_N, MASKED)
            largest = tl.max(scale_N, 0)
            weights_MN = weights_MN * (scale_N / tl.where(largest > 0, largest, 1.0))[None, :]
        acc_MD += largest * tl.dot(weights_MN.to(kind), v_ND, input_precision="ieee")
    else:
        weights_MN = multiplied(weights_MN, scale_ptr, at_N, there_N, MASKED, SCALES)
        acc_MD = tl.dot(weights_MN.to(kind), v_ND, acc_MD, input_precision="ieee")
    return acc_MD


@triton.jit
def absorb(
    acc_MD, top_M, sum_M, q_MD, position_M, slope_M, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr,
    table_ptr, first, end, seq_len, block_stride, MASKED: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SCALES: tl.constexpr, SLOPED: tl.constexpr,
    line_M=None, first_node=None, logits_ptr_M=None, EXTENT: tl.constexpr = 0,
):  # fmt: skip
    """Take the tiles first..end - 1 of keys and values into the running softmax.

    Keys and values of 8 bits become the queries' type, exactly; scales multiply scores and weights.

    Args:
        acc_MD, top_M, sum_M: Weighted values, maximum, and sum of weights so far, float32.
        position_M: Position of each row's query; -1 sees nothing.
        slope_M: As `slopes_of` returns them; of no use unless SLOPED.
        MASKED: False where every row sees every key of these tiles.
        line_M, first_node: Keys that each row sees from `first_node` on, as 64 bits; or None.
        logits_ptr_M: Of each row, what its scores have by distance, EXTENT of them; None for none.
    """
    kind: tl.constexpr = q_MD.dtype
    channel_D = tl.arange(0, BLOCK_D)
    # Pages are fetched one tile ahead, so that loads of keys never wait for them.
    pages = pages_of(table_ptr, first, seq_len, BLOCK_N, BLOCK_SIZE)
    for tile in range(first, end):
        rows_N = row_offsets(pages, tile, block_stride, BLOCK_N, BLOCK_SIZE, HEAD_DIM)
        scales_N = row_offsets(pages, tile, block_stride // 4, BLOCK_N, BLOCK_SIZE, 1)
        pages = pages_of(table_ptr, tile + 1, seq_len, BLOCK_N, BLOCK_SIZE)
        offsets_ND = rows_N[:, None] + channel_D[None, :]
        key_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        there_N = key_N < seq_len
        k_ND = load_rows(k_ptr, offsets_ND, there_N, channel_D, MASKED, HEAD_DIM)
        qk_MN = tl.dot(q_MD, tl.trans(k_ND.to(kind)), input_precision="ieee")
        qk_MN = multiplied(qk_MN, k_scale_ptr, scales_N, there_N, MASKED, SCALES)
        scores_MN, factor = scaled(qk_MN, SCALE, SOFTCAP)
        if SLOPED:
            away_MN = (position_M[:, None] - key_N[None, :]).to(tl.float32)
            scores_MN -= slope_M[:, None] * away_MN
        if logits_ptr_M is not None:
            away_MN = position_M[:, None] - key_N[None, :]
            named_MN = (away_MN >= 0) & (away_MN < EXTENT)
            more_MN = tl.load(logits_ptr_M[:, None] + away_MN, mask=named_MN, other=0.0)
            scores_MN += more_MN * (1.0 / SCALE)
        if MASKED:
            seen_MN = key_N[None, :] <= position_M[:, None]
            if WINDOW > 0:
                seen_MN &= key_N[None, :] > position_M[:, None] - WINDOW
            if line_M is not None:
                bit_N = tl.minimum(tl.maximum(key_N - first_node, 0), 63).to(tl.int64)
                named_MN = ((line_M[:, None] >> bit_N[None, :]) & 1) != 0
                seen_MN &= (key_N < first_node)[None, :] | named_MN
            scores_MN = tl.where(seen_MN, scores_MN, float("-inf"))
        new_top_M = tl.maximum(top_M, tl.max(scores_MN, 1) * factor)
        weights_MN = tl.exp2(scores_MN * factor - new_top_M[:, None])
        shrink_M = tl.exp2(top_M - new_top_M)
        v_ND = load_rows(v_ptr, offsets_ND, there_N, channel_D, MASKED, HEAD_DIM).to(kind)
        acc_MD = acc_MD * shrink_M[:, None]
        sum_M = sum_M * shrink_M + tl.sum(weights_MN, 1)
        acc_MD = weighed(acc_MD, weights_MN, v_ND, v_scale_ptr, scales_N, there_N, MASKED, SCALES)
        top_M = new_top_M
    return acc_MD, top_M, sum_M
