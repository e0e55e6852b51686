"""Attention as in `kernels.packed`, to all tokens of a request, with a bias by distance.

Only tiles near the diagonal read the bias key by key. To the logits of others, whose distances are
all beyond its span, one number is added.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.prefill import request_of_tile

#: Base 2 exponentials take one instruction.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def see(
    state, low, high, q_MD, k_ptr, v_ptr, k_stride, v_stride, start, column_D, there_D, length,
    position_M, bias_ptr, SPAN: tl.constexpr, SCALE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attend to the keys [low, high), and return (sums of values, of weights, the top).

    SPAN below 0: the logits of all these keys rise by what is at `bias_ptr`.
    """
    acc_MD, sum_M, top_M = state
    lift = tl.load(bias_ptr) * LOG2_E
    for begin in range(low, high, BLOCK_N):
        position_N = begin + tl.arange(0, BLOCK_N)
        there_N = position_N < length
        token_N = (start + position_N).to(tl.int64)
        there_ND = there_N[:, None] & there_D[None, :]
        k_ptrs_ND = k_ptr + token_N[:, None] * k_stride + column_D[None, :]
        k_ND = tl.load(k_ptrs_ND, mask=there_ND, other=0.0)
        v_ptrs_ND = v_ptr + token_N[:, None] * v_stride + column_D[None, :]
        v_ND = tl.load(v_ptrs_ND, mask=there_ND, other=0.0)
        score_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee") * (SCALE * LOG2_E)
        if SPAN >= 0:
            distance_MN = position_N[None, :] - position_M[:, None]
            column_MN = tl.minimum(tl.maximum(distance_MN, -SPAN), SPAN) + SPAN
            score_MN += tl.load(bias_ptr + column_MN) * LOG2_E
        else:
            score_MN += lift
        score_MN = tl.where(there_N[None, :], score_MN, float("-inf"))
        new_top_M = tl.maximum(top_M, tl.max(score_MN, 1))
        # A row that has seen no key yet has no top to be measured against.
        base_M = tl.where(new_top_M == float("-inf"), 0.0, new_top_M)
        weight_MN = tl.exp2(score_MN - base_M[:, None])
        factor_M = tl.exp2(top_M - base_M)
        sum_M = sum_M * factor_M + tl.sum(weight_MN, 1)
        acc_MD = acc_MD * factor_M[:, None]
        acc_MD = tl.dot(weight_MN.to(v_ND.dtype), v_ND, acc_MD, input_precision="ieee")
        top_M = new_top_M
    return acc_MD, sum_M, top_M


@triton.jit(do_not_specialize=["num_reqs"])
def biased_attention(
    out_ptr, q_ptr, k_ptr, v_ptr, starts_ptr, bias_ptr, num_keys_ptr, num_reqs,
    q_stride, k_stride, v_stride,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, SCALE: tl.constexpr,
    WINDOW: tl.constexpr, SPAN: tl.constexpr, LIMITED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Grid: (num_heads, num_tokens // BLOCK_M + num_reqs). WINDOW and LIMITED are none."""
    head, tile = tl.program_id(0), tl.program_id(1)
    request = request_of_tile(tile, starts_ptr, num_reqs, BLOCK_M, BLOCK_R)
    start = tl.load(starts_ptr + request)
    length = tl.load(starts_ptr + request + 1) - start
    first = (tile - start // BLOCK_M - request) * BLOCK_M
    if first >= length:
        return
    position_M, channel_D = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    there_D = channel_D < HEAD_DIM
    there_MD = (position_M < length)[:, None] & there_D[None, :]
    token_M = (start + position_M).to(tl.int64)
    q_ptrs_MD = q_ptr + token_M[:, None] * q_stride + head * HEAD_DIM + channel_D[None, :]
    q_MD = tl.load(q_ptrs_MD, mask=there_MD, other=0.0)
    column_D = head // GROUP * HEAD_DIM + channel_D
    top_M, sum_M = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    state = tl.zeros((BLOCK_M, BLOCK_D), tl.float32), sum_M, top_M
    # Keys before `near` are at least SPAN in front of every query, those from `far` behind.
    near = tl.maximum(first - SPAN + 1, 0) // BLOCK_N * BLOCK_N
    near = tl.minimum(near, length)
    far = (first + BLOCK_M - 1 + SPAN + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    far = tl.minimum(far, length)
    row_ptr = bias_ptr + head * (2 * SPAN + 1)
    # fmt: off
    state = see(state, 0, near, q_MD, k_ptr, v_ptr, k_stride, v_stride, start, column_D,
                there_D, length, position_M, row_ptr, -1, SCALE, BLOCK_N)
    state = see(state, near, far, q_MD, k_ptr, v_ptr, k_stride, v_stride, start, column_D,
                there_D, length, position_M, row_ptr, SPAN, SCALE, BLOCK_N)
    state = see(state, far, length, q_MD, k_ptr, v_ptr, k_stride, v_stride, start, column_D,
                there_D, length, position_M, row_ptr + 2 * SPAN, -1, SCALE, BLOCK_N)
    # fmt: on
    acc_MD, sum_M, top_M = state
    out_ptrs_MD = out_ptr + (token_M * NUM_HEADS + head)[:, None] * HEAD_DIM + channel_D[None, :]
    sum_M = tl.where(sum_M == 0.0, 1.0, sum_M)  # of rows behind the last token
    result_MD = (acc_MD / sum_M[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptrs_MD, result_MD, mask=there_MD)
