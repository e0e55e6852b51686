"""Per-head norm of q and k, rotation, and the write of k and v into the cache, in one pass.

A program takes some heads of one token, whatever they are: masks tell q, k and v apart. Rotated
channels come as two tiles, a and b, the partners of each pair; channels that are not rotated as a
third. Shape suffixes: H heads, P pairs, C channels that are not rotated.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import quantize, row_scale


@triton.jit
def normed(x_HC, inverse_H, q_weight_ptr, k_weight_ptr, at_C, there_C, is_q_H, is_v_H,
           OFFSET: tl.constexpr, dtype: tl.constexpr):  # fmt: skip
    """Return normalized channels of q and k heads, rounded as the model's type would be."""
    q_weight_C = tl.load(q_weight_ptr + at_C, mask=there_C, other=0.0).to(tl.float32)
    k_weight_C = tl.load(k_weight_ptr + at_C, mask=there_C, other=0.0).to(tl.float32)
    weight_HC = tl.where(is_q_H[:, None], q_weight_C[None, :], k_weight_C[None, :]) + OFFSET
    y_HC = (x_HC * inverse_H[:, None] * weight_HC).to(dtype).to(tl.float32)
    return tl.where(is_v_H[:, None], x_HC, y_HC)


@triton.jit
def normed_pairs(a_HP, b_HP, a_P, b_P, inverse_H, q_weight_ptr, k_weight_ptr, there_P, is_q_H,
                 is_v_H, OFFSET: tl.constexpr, dtype: tl.constexpr):  # fmt: skip
    """Return both tiles of pairs normalized."""
    a_HP = normed(a_HP, inverse_H, q_weight_ptr, k_weight_ptr, a_P, there_P, is_q_H, is_v_H,
                  OFFSET, dtype)  # fmt: skip
    b_HP = normed(b_HP, inverse_H, q_weight_ptr, k_weight_ptr, b_P, there_P, is_q_H, is_v_H,
                  OFFSET, dtype)  # fmt: skip
    return a_HP, b_HP


@triton.jit
def places(slot_ptr, block_stride, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Return whether a token is written, and where: its numbers' offset, and its scales'."""
    slot = tl.load(slot_ptr)
    there = tl.maximum(slot, 0)
    block, inside = (there // BLOCK_SIZE).to(tl.int64), there % BLOCK_SIZE
    return slot >= 0, block * block_stride + inside * HEAD_DIM, block * (block_stride // 4) + inside


@triton.jit
def stored(x_HC, scale_H, LIMIT: tl.constexpr, dtype: tl.constexpr):
    """Return channels as the cache has them: with LIMIT, quantized."""
    y_HC = x_HC
    if LIMIT > 0:
        y_HC = quantize(x_HC.to(tl.float32), scale_H[:, None], LIMIT, dtype)
    return y_HC.to(dtype)


@triton.jit
def put(x_HC, at_C, there_C, head_H, scale_H, q_ptr, k_ptr, v_ptr, write,
        NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
        BLOCK_SIZE: tl.constexpr, LIMIT: tl.constexpr, KEEP_Q: tl.constexpr):  # fmt: skip
    """Store channels where they belong: q in place, k and v in the cache's slot."""
    k_head_H = head_H - NUM_HEADS
    v_head_H = k_head_H - NUM_KV_HEADS
    is_k_H = (k_head_H >= 0) & (v_head_H < 0) & write
    is_v_H = (v_head_H >= 0) & (v_head_H < NUM_KV_HEADS) & write
    y_HC = x_HC.to(q_ptr.dtype.element_ty)
    z_HC = stored(y_HC, scale_H, LIMIT, k_ptr.dtype.element_ty)
    k_ptrs_HC = k_ptr + (k_head_H * (BLOCK_SIZE * HEAD_DIM))[:, None] + at_C[None, :]
    v_ptrs_HC = v_ptr + (v_head_H * (BLOCK_SIZE * HEAD_DIM))[:, None] + at_C[None, :]
    tl.store(k_ptrs_HC, z_HC, mask=is_k_H[:, None] & there_C[None, :])
    tl.store(v_ptrs_HC, z_HC, mask=is_v_H[:, None] & there_C[None, :])
    if not KEEP_Q:
        q_ptrs_HC = q_ptr + head_H[:, None] * HEAD_DIM + at_C[None, :]
        tl.store(q_ptrs_HC, y_HC, mask=(head_H < NUM_HEADS)[:, None] & there_C[None, :])


@triton.jit
def put_pairs(a_HP, b_HP, a_P, b_P, there_P, head_H, scale_H, q_ptr, k_ptr, v_ptr, write,
              NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
              BLOCK_SIZE: tl.constexpr, LIMIT: tl.constexpr):  # fmt: skip
    """Store both tiles of pairs."""
    put(a_HP, a_P, there_P, head_H, scale_H, q_ptr, k_ptr, v_ptr, write,
        NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, LIMIT, False)  # fmt: skip
    put(b_HP, b_P, there_P, head_H, scale_H, q_ptr, k_ptr, v_ptr, write,
        NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, LIMIT, False)  # fmt: skip


@triton.jit
def larger(largest_H, x_HC, dtype: tl.constexpr, SCALES: tl.constexpr):
    """Return the bits of the largest magnitude of each head so far, its channels rounded to the
    model's type; NaN is the largest. Where tokens have no scales of their own nothing changes."""
    if SCALES == 2:
        bits_HC = x_HC.to(dtype).to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        largest_H = tl.maximum(largest_H, tl.max(bits_HC, 1))
    return largest_H


@triton.jit
def scales_of(largest_H, head_H, is_v_H, k_scale_ptr, v_scale_ptr, at, write,
              NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
              LIMIT: tl.constexpr, SCALES: tl.constexpr):  # fmt: skip
    """Return each head's scale; those that belong to a token are stored in the cache at `at`."""
    scale_H = largest_H * 0 + 1.0
    if SCALES == 1:
        scale_H = tl.where(is_v_H, tl.load(v_scale_ptr), tl.load(k_scale_ptr))
    if SCALES == 2:
        scale_H = row_scale(largest_H, LIMIT)
        k_head_H = head_H - NUM_HEADS
        v_head_H = k_head_H - NUM_KV_HEADS
        is_k_H = (k_head_H >= 0) & (v_head_H < 0) & write
        tl.store(k_scale_ptr + at + k_head_H * BLOCK_SIZE, scale_H, mask=is_k_H)
        is_v_H = is_v_H & (v_head_H < NUM_KV_HEADS) & write
        tl.store(v_scale_ptr + at + v_head_H * BLOCK_SIZE, scale_H, mask=is_v_H)
    return scale_H


@triton.jit
def load_heads(qkv_ptr, head_H, there_H, at_C, there_C, HEAD_DIM: tl.constexpr):
    """Return some channels of heads [H, C] as float32, and their sums of squares [H]."""
    ptrs_HC = qkv_ptr + head_H[:, None] * HEAD_DIM + at_C[None, :]
    there_HC = there_H[:, None] & there_C[None, :]
    x_HC = tl.load(ptrs_HC, mask=there_HC, other=0.0).to(tl.float32)
    return x_HC, tl.sum(x_HC * x_HC, 1)


@triton.jit
def angles(cos_sin_ptr, position_ptr, HALF: tl.constexpr, BLOCK_P: tl.constexpr):
    """Return pairs, which of them there are, and the cosines and sines of a token's position."""
    pair_P = tl.arange(0, BLOCK_P)
    there_P = pair_P < HALF
    row_ptr = cos_sin_ptr + tl.load(position_ptr).to(tl.int64) * (2 * HALF)
    cos_P = tl.load(row_ptr + pair_P, mask=there_P, other=0.0)
    return pair_P, there_P, cos_P, tl.load(row_ptr + HALF + pair_P, mask=there_P, other=0.0)


@triton.jit
def turned(a_HP, b_HP, cos_P, sin_P, is_v_H):
    """Return the pairs rotated, those of v heads as they are."""
    cos_P, sin_P = cos_P[None, :], sin_P[None, :]
    turned_a_HP = tl.where(is_v_H[:, None], a_HP, a_HP * cos_P - b_HP * sin_P)
    turned_b_HP = tl.where(is_v_H[:, None], b_HP, b_HP * cos_P + a_HP * sin_P)
    return turned_a_HP, turned_b_HP


@triton.jit
def rotary_and_cache(
    qkv_ptr, positions_ptr, cos_sin_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, slots_ptr,
    q_weight_ptr, k_weight_ptr, qkv_stride, block_stride,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
    OFFSET: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr, LIMIT: tl.constexpr, SCALES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (tokens, heads / BLOCK_H). A negative slot writes nothing to the cache. LIMIT is that
    of a cache's 8-bit type, else 0; SCALES are as in attention."""
    HALF: tl.constexpr = ROTARY_DIM // 2
    KEEP_Q: tl.constexpr = (ROTARY_DIM == 0) and not NORM
    token = tl.program_id(0).to(tl.int64)
    head_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    there_H = head_H < NUM_HEADS + 2 * NUM_KV_HEADS
    is_q_H, is_v_H = head_H < NUM_HEADS, head_H >= NUM_HEADS + NUM_KV_HEADS
    dtype: tl.constexpr = qkv_ptr.dtype.element_ty
    qkv_ptr += token * qkv_stride
    # No kernel of a chain writes slots, positions or angles.
    write, at, scale_at = places(slots_ptr + token, block_stride, HEAD_DIM, BLOCK_SIZE)
    k_ptr, v_ptr = k_ptr + at, v_ptr + at
    if HALF > 0:
        pair_P, there_P, cos_P, sin_P = angles(cos_sin_ptr, positions_ptr + token, HALF, BLOCK_P)
    wait(CHAINED)
    squares_H = tl.zeros([BLOCK_H], tl.float32)
    if ROTARY_DIM < HEAD_DIM:
        channel_C = ROTARY_DIM + tl.arange(0, BLOCK_C)
        there_C = channel_C < HEAD_DIM
        rest_HC, squares_H = load_heads(qkv_ptr, head_H, there_H, channel_C, there_C, HEAD_DIM)
    if HALF > 0:
        a_P, b_P = pair_P, pair_P + HALF
        if INTERLEAVED:
            a_P, b_P = 2 * pair_P, 2 * pair_P + 1
        a_HP, a_squares_H = load_heads(qkv_ptr, head_H, there_H, a_P, there_P, HEAD_DIM)
        b_HP, b_squares_H = load_heads(qkv_ptr, head_H, there_H, b_P, there_P, HEAD_DIM)
        squares_H += a_squares_H + b_squares_H
    inverse_H = tl.rsqrt(squares_H / HEAD_DIM + EPS) if NORM else squares_H

    largest_H = tl.zeros([BLOCK_H], tl.int32)
    if ROTARY_DIM < HEAD_DIM:
        if NORM:
            rest_HC = normed(rest_HC, inverse_H, q_weight_ptr, k_weight_ptr, channel_C, there_C,
                             is_q_H, is_v_H, OFFSET, dtype)  # fmt: skip
        largest_H = larger(largest_H, rest_HC, dtype, SCALES)
    if HALF > 0:
        if NORM:
            a_HP, b_HP = normed_pairs(a_HP, b_HP, a_P, b_P, inverse_H, q_weight_ptr, k_weight_ptr,
                                      there_P, is_q_H, is_v_H, OFFSET, dtype)  # fmt: skip
        a_HP, b_HP = turned(a_HP, b_HP, cos_P, sin_P, is_v_H)
        largest_H = larger(larger(largest_H, a_HP, dtype, SCALES), b_HP, dtype, SCALES)

    scale_H = scales_of(largest_H, head_H, is_v_H, k_scale_ptr, v_scale_ptr, scale_at, write,
                        NUM_HEADS, NUM_KV_HEADS, BLOCK_SIZE, LIMIT, SCALES)  # fmt: skip
    if ROTARY_DIM < HEAD_DIM:
        put(rest_HC, channel_C, there_C, head_H, scale_H, qkv_ptr, k_ptr, v_ptr, write,
            NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, LIMIT,
            KEEP_Q or not NORM)  # fmt: skip
    if HALF > 0:
        put_pairs(a_HP, b_HP, a_P, b_P, there_P, head_H, scale_H, qkv_ptr, k_ptr, v_ptr, write,
                  NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, LIMIT)  # fmt: skip
