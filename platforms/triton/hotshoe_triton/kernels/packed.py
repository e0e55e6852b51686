"""Attention in both directions among the tokens of each request of a step, read where they lie.

One program computes BLOCK_M tokens of a request for one head. Which request a tile belongs to is
found on the device, as in `kernels.prefill`. Rotated queries and keys come from another kernel.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.prefill import request_of_tile

#: Base 2 exponentials take one instruction.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["num_reqs"])
def packed_attention(
    out_ptr, q_ptr, k_ptr, v_ptr, starts_ptr, bias_ptr, num_keys_ptr, num_reqs,
    q_stride, k_stride, v_stride,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, SCALE: tl.constexpr,
    WINDOW: tl.constexpr, SPAN: tl.constexpr, LIMITED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Grid: (num_heads, num_tokens // BLOCK_M + num_reqs). WINDOW and SPAN below 0 are none."""
    head, tile = tl.program_id(0), tl.program_id(1)
    request = request_of_tile(tile, starts_ptr, num_reqs, BLOCK_M, BLOCK_R)
    start = tl.load(starts_ptr + request)
    length = tl.load(starts_ptr + request + 1) - start
    first = (tile - start // BLOCK_M - request) * BLOCK_M
    if first >= length:
        return
    position_M, channel_D = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    there_D, column_D = channel_D < HEAD_DIM, head // GROUP * HEAD_DIM + channel_D
    there_MD = (position_M < length)[:, None] & there_D[None, :]
    token_M = (start + position_M).to(tl.int64)
    q_ptrs_MD = q_ptr + token_M[:, None] * q_stride + head * HEAD_DIM + channel_D[None, :]
    q_MD = tl.load(q_ptrs_MD, mask=there_MD, other=0.0)
    acc_MD = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top_M, sum_M = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    num_keys = length
    if LIMITED:
        num_keys = tl.load(num_keys_ptr + request)
    low, high = first * 0, num_keys
    if WINDOW >= 0:
        low = tl.maximum(first - WINDOW, 0) // BLOCK_N * BLOCK_N
        high = tl.minimum(first + BLOCK_M + WINDOW, length)
    for begin in range(low, high, BLOCK_N):
        position_N = begin + tl.arange(0, BLOCK_N)
        there_N = position_N < num_keys
        token_N = (start + position_N).to(tl.int64)
        there_ND = there_N[:, None] & there_D[None, :]
        k_ptrs_ND = k_ptr + token_N[:, None] * k_stride + column_D[None, :]
        k_ND = tl.load(k_ptrs_ND, mask=there_ND, other=0.0)
        v_ptrs_ND = v_ptr + token_N[:, None] * v_stride + column_D[None, :]
        v_ND = tl.load(v_ptrs_ND, mask=there_ND, other=0.0)
        score_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee") * (SCALE * LOG2_E)
        seen_MN = there_N[None, :]
        distance_MN = position_N[None, :] - position_M[:, None]
        if SPAN >= 0:
            column_MN = tl.minimum(tl.maximum(distance_MN, -SPAN), SPAN) + SPAN
            score_MN += tl.load(bias_ptr + head * (2 * SPAN + 1) + column_MN) * LOG2_E
        if WINDOW >= 0:
            seen_MN = seen_MN & (distance_MN <= WINDOW) & (distance_MN >= -WINDOW)
        score_MN = tl.where(seen_MN, score_MN, float("-inf"))
        new_top_M = tl.maximum(top_M, tl.max(score_MN, 1))
        base_M = tl.where(new_top_M == float("-inf"), 0.0, new_top_M)  # without a key no top
        weight_MN = tl.exp2(score_MN - base_M[:, None])
        factor_M = tl.exp2(top_M - base_M)
        sum_M = sum_M * factor_M + tl.sum(weight_MN, 1)
        acc_MD = acc_MD * factor_M[:, None]
        acc_MD = tl.dot(weight_MN.to(v_ND.dtype), v_ND, acc_MD, input_precision="ieee")
        top_M = new_top_M
    out_ptrs_MD = out_ptr + (token_M * NUM_HEADS + head)[:, None] * HEAD_DIM + channel_D[None, :]
    sum_M = tl.where(sum_M == 0.0, 1.0, sum_M)  # of rows behind the last token
    result_MD = (acc_MD / sum_M[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptrs_MD, result_MD, mask=there_MD)
