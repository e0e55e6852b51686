"""The choice of cached tokens: scores of all that a query sees, then the places of the largest.

A query that sees no more tokens than it may choose gets all of them, and no score is computed.
Else scores become integers of the same order. Four counts of digits of eight bits find the lowest
that is chosen, and one more pass writes the places.

Shape suffixes: H heads, D channels, N keys, S scores, B digits, P pairs.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import largest_bits, quantize, row_scale
from hotshoe_triton.kernels.shortlist import ordered


@triton.jit
def seen_by(token, starts_ptr, lens_ptr, num_reqs, BLOCK_R: tl.constexpr):
    """Return the request of a token, and how many tokens it sees: 0 if it is no request's."""
    request = tl.zeros((), tl.int32)
    for first in range(0, num_reqs, BLOCK_R):
        index_R = first + tl.arange(0, BLOCK_R)
        end_R = tl.load(starts_ptr + 1 + index_R, mask=index_R < num_reqs, other=2147483647)
        request += tl.sum((end_R <= token).to(tl.int32), 0)
    there = request < num_reqs
    end = tl.load(starts_ptr + 1 + request, mask=there, other=0)
    length = tl.load(lens_ptr + request, mask=there, other=0)
    return request, tl.maximum(tl.where(there, length - (end - token) + 1, 0), 0)


@triton.jit
def turn(
    x_ptrs_H, there_H, row_ptr, pair_P, TURNED: tl.constexpr, INTERLEAVED: tl.constexpr, sign=1.0
):
    """Return where both numbers of each pair lie, and the rotated ones; leading ones rotate.

    With a `sign` of -1 they are rotated back.
    """
    HALF: tl.constexpr = TURNED // 2
    a_P, b_P = pair_P, pair_P + HALF
    if INTERLEAVED:
        a_P, b_P = 2 * pair_P, 2 * pair_P + 1
    there_P = pair_P < HALF
    cos_P = tl.load(row_ptr + pair_P, mask=there_P, other=0.0)[None, :]
    sin_P = sign * tl.load(row_ptr + HALF + pair_P, mask=there_P, other=0.0)[None, :]
    there_HP = there_H[:, None] & there_P[None, :]
    a_HP = tl.load(x_ptrs_H[:, None] + a_P[None, :], mask=there_HP, other=0.0).to(tl.float32)
    b_HP = tl.load(x_ptrs_H[:, None] + b_P[None, :], mask=there_HP, other=0.0).to(tl.float32)
    return a_P, b_P, there_HP, a_HP * cos_P - b_HP * sin_P, b_HP * cos_P + a_HP * sin_P


@triton.jit
def narrowed(x, scale, cache_ptr, LIMIT: tl.constexpr):
    """Return numbers as the cache has them; with LIMIT, quantized."""
    dtype: tl.constexpr = cache_ptr.dtype.element_ty
    if LIMIT > 0:
        return quantize(x.to(tl.float32), scale, LIMIT, dtype)
    else:
        return x.to(dtype)


@triton.jit
def index_write(
    q_ptr, key_ptr, positions_ptr, cos_sin_ptr, cache_ptr, scales_ptr, slots_ptr,
    q_stride, key_stride, block_stride,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, LIMIT: tl.constexpr,
    TURNED: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Rotate q where it lies and write the cache's keys. A negative slot writes none.

    Grid: (tokens, HEADS / BLOCK_H + 1); the last program of a token writes its key.
    """
    token, pair_P = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_P)
    wait(CHAINED)
    row_ptr = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * TURNED
    if tl.program_id(1) < tl.num_programs(1) - 1:
        head_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
        q_ptrs_H = q_ptr + token * q_stride + head_H * D
        a_P, b_P, there_HP, a_HP, b_HP = turn(
            q_ptrs_H, head_H < HEADS, row_ptr, pair_P, TURNED, INTERLEAVED
        )
        tl.store(q_ptrs_H[:, None] + a_P[None, :], a_HP.to(q_ptr.dtype.element_ty), mask=there_HP)
        tl.store(q_ptrs_H[:, None] + b_P[None, :], b_HP.to(q_ptr.dtype.element_ty), mask=there_HP)
        return
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    key_ptr += token * key_stride
    block, inside = (slot // BLOCK_SIZE).to(tl.int64), slot % BLOCK_SIZE
    cache_ptr += block * block_stride + inside * WIDTH
    only_H = tl.arange(0, 1)
    a_P, b_P, there_HP, a_HP, b_HP = turn(
        key_ptr + only_H, only_H == 0, row_ptr, pair_P, TURNED, INTERLEAVED
    )
    channel_D = tl.arange(0, BLOCK_D)
    plain_D = (channel_D >= TURNED) & (channel_D < D)
    rest_D = tl.load(key_ptr + channel_D, mask=plain_D, other=0.0)
    a_HP, b_HP = a_HP.to(rest_D.dtype), b_HP.to(rest_D.dtype)
    scale = 1.0
    if LIMIT > 0:
        a_P_bits = largest_bits(tl.reshape(a_HP, [BLOCK_P]).to(tl.float32))
        b_P_bits = largest_bits(tl.reshape(b_HP, [BLOCK_P]).to(tl.float32))
        rest_bits = largest_bits(rest_D.to(tl.float32))
        scale = row_scale(tl.maximum(tl.maximum(a_P_bits, b_P_bits), rest_bits), LIMIT)
        scales_ptr += block * (block_stride // 4) + inside * (WIDTH // 4) + D // 4
        tl.store(scales_ptr + tl.arange(0, 4), tl.zeros([4], tl.float32) + scale)
    tl.store(cache_ptr + a_P[None, :], narrowed(a_HP, scale, cache_ptr, LIMIT), mask=there_HP)
    tl.store(cache_ptr + b_P[None, :], narrowed(b_HP, scale, cache_ptr, LIMIT), mask=there_HP)
    tl.store(cache_ptr + channel_D, narrowed(rest_D, scale, cache_ptr, LIMIT), mask=plain_D)


@triton.jit(do_not_specialize=["first", "num_reqs", "table_stride"])
def index_scores(
    scores_ptr,  # [tokens of this launch, scores_stride] float32
    q_ptr,  # [tokens, HEADS, D], rotated
    weights_ptr,  # [tokens, HEADS] float32
    cache_ptr,  # [blocks, BLOCK_SIZE, WIDTH], rows as `latent.py` has them, without keys
    scales_ptr, table_ptr, starts_ptr, lens_ptr, first, num_reqs,
    scores_stride, q_stride, weights_stride, table_stride, block_stride,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TOP_K: tl.constexpr,
    TILES: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Score TILES tiles of keys for one query. Grid: (tokens, most keys / TILES / BLOCK_N)."""
    wait(CHAINED)
    token, begin = first + tl.program_id(0), tl.program_id(1) * TILES
    request, seen = seen_by(token, starts_ptr, lens_ptr, num_reqs, BLOCK_R)
    if (seen <= TOP_K) | (begin * BLOCK_N >= seen):
        return
    head_H, channel_D = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    q_ptr += token.to(tl.int64) * q_stride
    there_HD = (head_H < HEADS)[:, None] & (channel_D < D)[None, :]
    q_HD = tl.load(q_ptr + head_H[:, None] * D + channel_D[None, :], mask=there_HD, other=0.0)
    weights_ptr += token.to(tl.int64) * weights_stride
    weight_H = tl.load(weights_ptr + head_H, mask=head_H < HEADS, other=0.0)
    table_ptr += request.to(tl.int64) * table_stride
    scores_ptr += tl.program_id(0).to(tl.int64) * scores_stride
    for tile in range(begin, tl.minimum(begin + TILES, tl.cdiv(seen, BLOCK_N))):
        key_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        there_N = key_N < seen
        block_N = tl.load(table_ptr + key_N // BLOCK_SIZE, mask=there_N, other=0).to(tl.int64)
        inside_N = key_N % BLOCK_SIZE
        row_N = block_N * block_stride + inside_N * WIDTH
        there_ND = there_N[:, None] & (channel_D < D)[None, :]
        k_ND = tl.load(cache_ptr + row_N[:, None] + channel_D[None, :], mask=there_ND, other=0.0)
        k_ND = k_ND.to(q_HD.dtype)
        each_HN = tl.dot(q_HD, tl.trans(k_ND), input_precision="ieee")
        score_N = tl.sum(tl.maximum(each_HN, 0.0) * weight_H[:, None], 0)
        if SCALED:
            scale_ptrs = scales_ptr + block_N * (block_stride // 4) + inside_N * (WIDTH // 4)
            score_N *= tl.load(scale_ptrs + D // 4, mask=there_N, other=0.0)
        tl.store(scores_ptr + key_N, score_N, mask=there_N)


@triton.jit
def keys_of(scores_ptr, at_S, seen):
    """Load scores as integers of the same order, without a sign."""
    there_S = at_S < seen
    score_S = tl.load(scores_ptr + at_S, mask=there_S, other=0.0)
    return ordered(score_S).to(tl.uint32, bitcast=True) ^ 0x80000000, there_S


@triton.jit
def lowest_chosen(scores_ptr, seen, TOP_K: tl.constexpr, BLOCK_S: tl.constexpr):
    """Return the lowest integer that is chosen, and how many that are equal to it are."""
    digit_B = tl.arange(0, 256)
    prefix, wanted = tl.zeros((), tl.uint32), tl.full((), TOP_K, tl.int32)
    for place in tl.static_range(4):
        shift = 24 - 8 * place
        count_B = tl.zeros((256,), tl.int32)
        for begin in range(0, seen, BLOCK_S):
            key_S, there_S = keys_of(scores_ptr, begin + tl.arange(0, BLOCK_S), seen)
            # In two steps, as a shift by 32 bits is none.
            within_S = there_S & (((key_S >> shift) >> 8) == prefix)
            count_B += tl.histogram(((key_S >> shift) & 255).to(tl.int32), 256, mask=within_S)
        reached_B = tl.sum(count_B, 0) - tl.cumsum(count_B, 0) + count_B
        digit = tl.sum((reached_B >= wanted).to(tl.int32), 0) - 1
        wanted -= tl.sum(tl.where(digit_B > digit, count_B, 0), 0)
        prefix = (prefix << 8) | digit.to(tl.uint32)
    return prefix, wanted


@triton.jit(do_not_specialize=["first", "num_reqs"])
def index_choose(
    chosen_ptr,  # [tokens, TOP_K] int32
    scores_ptr, starts_ptr, lens_ptr, first, num_reqs, scores_stride,
    TOP_K: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Write the places that one query attends to, in ascending order. Grid: (tokens,)."""
    wait(CHAINED)
    token = first + tl.program_id(0)
    _request, seen = seen_by(token, starts_ptr, lens_ptr, num_reqs, BLOCK_R)
    chosen_ptr += token.to(tl.int64) * TOP_K
    if seen <= TOP_K:
        for begin in range(0, TOP_K, BLOCK_S):
            at_S = begin + tl.arange(0, BLOCK_S)
            tl.store(chosen_ptr + at_S, tl.where(at_S < seen, at_S, -1), mask=at_S < TOP_K)
        return
    scores_ptr += tl.program_id(0).to(tl.int64) * scores_stride
    lowest, wanted = lowest_chosen(scores_ptr, seen, TOP_K, BLOCK_S)
    taken, met = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    for begin in range(0, seen, BLOCK_S):
        at_S = begin + tl.arange(0, BLOCK_S)
        key_S, there_S = keys_of(scores_ptr, at_S, seen)
        equal_S = (there_S & (key_S == lowest)).to(tl.int32)
        first_S = (equal_S > 0) & (met + tl.cumsum(equal_S, 0) <= wanted)
        take_S = ((there_S & (key_S > lowest)) | first_S).to(tl.int32)
        tl.store(chosen_ptr + taken + tl.cumsum(take_S, 0) - 1, at_S, mask=take_S > 0)
        taken += tl.sum(take_S, 0)
        met += tl.sum(equal_S, 0)
