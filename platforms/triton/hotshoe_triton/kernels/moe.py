"""Mixtures of experts: choice, order by expert, products of the chosen experts, weighted sum.

A pair is a token with one of its experts: pair p belongs to token p // TOP_K. Nothing here depends
on numbers that only the device knows, so that steps are recorded: grids are as large as the worst
distribution of tokens needs, and programs without work return. No result depends on timing.

Shape suffixes: E experts, G groups of experts, S experts of a group, C choices of a token, M pairs,
N output features, K input features, P all pairs.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import activate, sigmoid

#: As in core's reference: all scores may be 0.
TINY = tl.constexpr(1e-20)
#: Numbers that describe a block of pairs: expert, first pair, end of the expert's pairs.
BLOCK_FIELDS = tl.constexpr(3)


@triton.jit
def keep_groups(wanted_GS, group_G, KEPT: tl.constexpr, TOP2: tl.constexpr):
    """Return scores with those of all but the best groups as -inf."""
    best_G, at_G = tl.max(wanted_GS, 1, return_indices=True)
    if TOP2:
        lane_S = tl.arange(0, wanted_GS.shape[1])
        best_G += tl.max(tl.where(lane_S[None, :] == at_G[:, None], -float("inf"), wanted_GS), 1)
    kept_G = group_G < 0
    for _ in range(KEPT):
        best = tl.argmax(tl.where(kept_G, -float("inf"), best_G), 0)
        kept_G = kept_G | (group_G == best)
    return tl.where(kept_G[:, None], wanted_GS, -float("inf"))


@triton.jit
def sqrt_softplus(x):
    """Return sqrt(log(1 + exp(x))), near 0 as exactly as elsewhere; 0 for -inf."""
    grown = tl.exp(-tl.abs(x))
    series = grown * (1.0 - grown * (0.5 - grown * (1.0 / 3.0 - grown * 0.25)))
    log1p = tl.where(grown < 0.02, series, tl.log(1.0 + grown))
    return tl.where(x == x, tl.sqrt(tl.where(x > 0.0, x, 0.0) + log1p), x)


@triton.jit
def choose(
    ids_ptr, weights_ptr, logits_ptr, correction_ptr, logits_stride,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SIGMOID: tl.constexpr, CORRECTION: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    RENORMALIZE: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr,
    TOP2: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Choose the experts of a token, as core's `route` does. Grid: (tokens,).

    Where scores hold NaN, all weights are NaN, and any experts are chosen.

    Args:
        ids_ptr, weights_ptr: [tokens, TOP_K] int32 and float32, written.
    """
    SIZE: tl.constexpr = EXPERTS // GROUPS
    token = tl.program_id(0)
    group_G, lane_S = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_S)
    expert_GS = group_G[:, None] * SIZE + lane_S[None, :]
    there_GS = (group_G < GROUPS)[:, None] & (lane_S < SIZE)[None, :]
    wait(CHAINED)
    logits_ptr += token.to(tl.int64) * logits_stride
    score_GS = tl.load(logits_ptr + expert_GS, mask=there_GS, other=-float("inf"))
    if SIGMOID:
        score_GS = tl.where(there_GS, sigmoid(score_GS), 0.0)
    elif SOFTPLUS:
        score_GS = tl.where(there_GS, sqrt_softplus(score_GS), 0.0)
    else:
        grown_GS = tl.exp(score_GS - tl.max(score_GS))
        score_GS = grown_GS / tl.sum(grown_GS)
    unknown = tl.sum((score_GS != score_GS).to(tl.int32)) > 0
    wanted_GS = score_GS
    if CORRECTION:
        wanted_GS += tl.load(correction_ptr + expert_GS, mask=there_GS, other=0.0)
    wanted_GS = tl.where(there_GS & (wanted_GS == wanted_GS), wanted_GS, -float("inf"))
    if GROUPS > 1:
        wanted_GS = keep_groups(wanted_GS, group_G, KEPT, TOP2)
    wanted_E = tl.reshape(wanted_GS, [BLOCK_G * BLOCK_S])
    score_E = tl.reshape(score_GS, [BLOCK_G * BLOCK_S])
    lane_E, choice_C = tl.arange(0, BLOCK_G * BLOCK_S), tl.arange(0, BLOCK_C)
    weight_C = tl.zeros([BLOCK_C], tl.float32)
    id_C = tl.zeros([BLOCK_C], tl.int32)
    for i in range(TOP_K):
        weight, at = tl.max(wanted_E, 0, return_indices=True)
        if CORRECTION:
            weight = tl.sum(tl.where(lane_E == at, score_E, 0.0), 0)
        wanted_E = tl.where(lane_E == at, -float("inf"), wanted_E)
        weight_C = tl.where(choice_C == i, weight, weight_C)
        id_C = tl.where(choice_C == i, at // BLOCK_S * SIZE + at % BLOCK_S, id_C)
    weight_C = tl.where(unknown, float("nan"), weight_C)
    if RENORMALIZE:
        weight_C = weight_C / (tl.sum(weight_C, 0) + TINY)
    at_C = token.to(tl.int64) * TOP_K + choice_C
    tl.store(ids_ptr + at_C, id_C, mask=choice_C < TOP_K)
    tl.store(weights_ptr + at_C, weight_C * SCALE, mask=choice_C < TOP_K)


@triton.jit
def arrange(
    order_ptr, blocks_ptr, ids_ptr, num_pairs,
    BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Order pairs by expert, and cut each expert's into blocks. Grid: (experts,).

    The blocks of expert e begin at index first // BLOCK_M + e, where first counts the pairs of the
    experts before. That is never less than the number of blocks before, so that no program needs
    to know others' counts; indices without pairs get expert -1.

    Args:
        order_ptr: [num_pairs] int32, written: pairs by expert, each expert's ascending.
        blocks_ptr: [num_pairs // BLOCK_M + experts, 3] int32, written; see BLOCK_FIELDS.
    """
    expert = tl.program_id(0)
    lane_P = tl.arange(0, BLOCK_P)
    before_P = tl.zeros([BLOCK_P], tl.int32)
    own_P = tl.zeros([BLOCK_P], tl.int32)
    wait(CHAINED)
    for begin in range(0, num_pairs, BLOCK_P):
        id_P = tl.load(ids_ptr + begin + lane_P, mask=begin + lane_P < num_pairs, other=1 << 30)
        before_P += (id_P < expert).to(tl.int32)
        own_P += (id_P == expert).to(tl.int32)
    first, count = tl.sum(before_P, 0), tl.sum(own_P, 0)
    end, placed = first + count, first
    for begin in range(0, num_pairs, BLOCK_P):
        id_P = tl.load(ids_ptr + begin + lane_P, mask=begin + lane_P < num_pairs, other=1 << 30)
        hit_P = (id_P == expert).to(tl.int32)
        place_P = placed + tl.cumsum(hit_P, 0) - 1
        tl.store(order_ptr + place_P, begin + lane_P, mask=hit_P > 0)
        placed += tl.sum(hit_P, 0)
    index, behind = first // BLOCK_M + expert, end // BLOCK_M + expert + 1
    for begin in range(index, behind, BLOCK_P):
        at_P = begin + lane_P
        first_P = first + (at_P - index) * BLOCK_M
        field_ptrs_P = blocks_ptr + at_P * BLOCK_FIELDS
        tl.store(field_ptrs_P, tl.where(first_P < end, expert, -1), mask=at_P < behind)
        tl.store(field_ptrs_P + 1, first_P, mask=at_P < behind)
        tl.store(field_ptrs_P + 2, tl.zeros([BLOCK_P], tl.int32) + end, mask=at_P < behind)


@triton.jit
def inner_of(
    gate, up, GATED: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
    GATE_LIMIT: tl.constexpr, ALPHA: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Return what goes into an expert's second matrix, from float32 results of its first.

    Comparisons let NaN through, where the hardware's minimum would drop it.
    """
    if GATE_LIMIT is not None:
        gate = tl.where(gate > GATE_LIMIT, GATE_LIMIT, gate)
    if ALPHA != 1.0:
        inner = gate * sigmoid(ALPHA * gate)
    elif ACTIVATION == "relu2":
        positive = tl.where(gate < 0, 0.0, gate)
        inner = positive * positive
    else:
        inner = activate(gate, ACTIVATION)
    if GATED:
        if LIMIT is not None:
            up = tl.where(up > LIMIT, LIMIT, up)
            up = tl.where(up < -LIMIT, -LIMIT, up)
        inner *= up + SHIFT
    return inner


@triton.jit
def piece(ptrs, there, EVEN: tl.constexpr):
    """Load a piece of a matrix; with EVEN all of it is there."""
    if EVEN:
        values = tl.load(ptrs)
    else:
        values = tl.load(ptrs, mask=there, other=0.0)
    return values


@triton.jit
def rows_of(at_M, pair_M, TOP_K: tl.constexpr, FIRST: tl.constexpr, SORTED: tl.constexpr):
    """Return the rows that a product reads and writes: between both products pairs lie by expert
    with SORTED, else in their own order."""
    if FIRST:
        from_M = pair_M // TOP_K
        to_M = at_M if SORTED else pair_M
    else:
        from_M = at_M if SORTED else pair_M
        to_M = pair_M
    return from_M, to_M


@triton.jit
def finish(
    y_ptr, gate_NM, up_NM, bias_ptr, n_N, m_M, to_M, end,
    N: tl.constexpr, BIAS: tl.constexpr, FIRST: tl.constexpr, GATED: tl.constexpr,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
    GATE_LIMIT: tl.constexpr, ALPHA: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Add biases, make inner values of sums, and write them to rows `to_M` of y [pairs, N]."""
    if BIAS:
        bias_ptrs_N = bias_ptr + n_N
        gate_NM += tl.load(bias_ptrs_N, mask=n_N < N, other=0.0).to(tl.float32)[:, None]
        if GATED:
            up_NM += tl.load(bias_ptrs_N + N, mask=n_N < N, other=0.0).to(tl.float32)[:, None]
    if FIRST and ACTIVATION != "none":
        gate_NM = inner_of(gate_NM, up_NM, GATED, ACTIVATION, LIMIT, GATE_LIMIT, ALPHA, SHIFT)
    y_ptrs_NM = y_ptr + to_M.to(tl.int64)[None, :] * N + n_N[:, None]
    there_NM = (n_N < N)[:, None] & (m_M < end)[None, :]
    tl.store(y_ptrs_NM, gate_NM.to(y_ptr.dtype.element_ty), mask=there_NM)


@triton.jit
def grouped(
    y_ptr, x_ptr, w_ptr, bias_ptr, order_ptr, blocks_ptr, x_stride,
    N: tl.constexpr, K: tl.constexpr, TOP_K: tl.constexpr, BIAS: tl.constexpr, FIRST: tl.constexpr,
    SORTED: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
    GATE_LIMIT: tl.constexpr,
    ALPHA: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply blocks of pairs by their expert's matrix. Grid: (blocks * tiles of N,).

    The product is transposed, weight rows times x, so that few pairs pad to little.

    Args:
        y_ptr: [pairs, N], written, see `rows_of`.
        x_ptr: With FIRST the tokens [tokens, K], else [pairs, K].
        w_ptr, bias_ptr: [experts, N, K] and [experts, N]; with GATED 2 * N for N, gates first.
    """
    HALVES: tl.constexpr = 2 if GATED else 1
    TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    EVEN: tl.constexpr = K % BLOCK_K == 0
    block, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    n_N, k_K = tile * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    wait(CHAINED)
    blocks_ptr += block * BLOCK_FIELDS
    expert, begin, end = tl.load(blocks_ptr), tl.load(blocks_ptr + 1), tl.load(blocks_ptr + 2)
    if begin >= end:  # no pairs, also where nobody has cut any blocks and all fields are zeros
        return
    m_M = begin + tl.arange(0, BLOCK_M)
    # Pairs and rows behind the end read the last one; their products are not stored.
    at_M = tl.minimum(m_M, end - 1)
    pair_M = tl.load(order_ptr + at_M)
    from_M, to_M = rows_of(at_M, pair_M, TOP_K, FIRST, SORTED)
    w_ptr += expert.to(tl.int64) * (HALVES * N * K)
    w_ptrs_NK = w_ptr + tl.minimum(n_N, N - 1)[:, None] * K + k_K[None, :]
    x_ptrs_KM = x_ptr + from_M.to(tl.int64)[None, :] * x_stride + k_K[:, None]
    gate_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up_NM = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for first in range(0, K, BLOCK_K):
        there_K = k_K + first < K
        x_KM = piece(x_ptrs_KM, there_K[:, None], EVEN)
        w_NK = piece(w_ptrs_NK, there_K[None, :], EVEN)
        gate_NM = tl.dot(w_NK, x_KM, gate_NM, input_precision="ieee")
        if GATED:
            w_NK = piece(w_ptrs_NK + N * K, there_K[None, :], EVEN)
            up_NM = tl.dot(w_NK, x_KM, up_NM, input_precision="ieee")
        w_ptrs_NK += BLOCK_K
        x_ptrs_KM += BLOCK_K
    finish(y_ptr, gate_NM, up_NM, bias_ptr + expert * (HALVES * N), n_N, m_M, to_M, end, N, BIAS,
           FIRST, GATED, ACTIVATION, LIMIT, GATE_LIMIT, ALPHA, SHIFT)  # fmt: skip


@triton.jit
def inner_rows(
    inner_ptr, y_ptr,
    N: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
    GATE_LIMIT: tl.constexpr,
    ALPHA: tl.constexpr, SHIFT: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Make inner values of what first matrices gave. Grid: (pairs, N / BLOCK_N).

    Args:
        inner_ptr: [pairs, N], written.
        y_ptr: [pairs, N]; with GATED 2 * N for N, gates first.
    """
    HALVES: tl.constexpr = 2 if GATED else 1
    pair = tl.program_id(0).to(tl.int64)
    n_N = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    there_N = n_N < N
    wait(CHAINED)
    y_ptrs_N = y_ptr + pair * (HALVES * N) + n_N
    gate_N = tl.load(y_ptrs_N, mask=there_N, other=0.0).to(tl.float32)
    up_N = gate_N
    if GATED:
        up_N = tl.load(y_ptrs_N + N, mask=there_N, other=0.0).to(tl.float32)
    inner_N = inner_of(gate_N, up_N, GATED, ACTIVATION, LIMIT, GATE_LIMIT, ALPHA, SHIFT)
    tl.store(inner_ptr + pair * N + n_N, inner_N.to(inner_ptr.dtype.element_ty), mask=there_N)


@triton.jit
def combine(
    y_ptr, results_ptr, weights_ptr,
    N: tl.constexpr, TOP_K: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Add up what a token's experts computed. Grid: (tokens, N / BLOCK_N).

    Args:
        results_ptr: [pairs, N].
    """
    pair = tl.program_id(0).to(tl.int64) * TOP_K
    n_N = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    sum_N = tl.zeros([BLOCK_N], tl.float32)
    wait(CHAINED)
    for i in tl.static_range(TOP_K):
        result_N = tl.load(results_ptr + (pair + i) * N + n_N, mask=n_N < N, other=0.0)
        sum_N += tl.load(weights_ptr + pair + i) * result_N.to(tl.float32)
    y_ptrs_N = y_ptr + tl.program_id(0).to(tl.int64) * N + n_N
    tl.store(y_ptrs_N, sum_N.to(y_ptr.dtype.element_ty), mask=n_N < N)


@triton.jit
def first_alone(
    inner_ptr, x_ptr, w_ptr, bias_ptr, ids_ptr, x_stride,
    N: tl.constexpr, K: tl.constexpr, TOP_K: tl.constexpr, BIAS: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
    GATE_LIMIT: tl.constexpr, ALPHA: tl.constexpr,
    SHIFT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UNROLL: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """First matrices, pair by pair without matrix units. Grid: (pairs, N / BLOCK_N).

    Args:
        inner_ptr: [pairs, N], written.
        w_ptr, bias_ptr: As `grouped` has them.
    """
    HALVES: tl.constexpr = 2 if GATED else 1
    EVEN: tl.constexpr = K % BLOCK_K == 0
    pair = tl.program_id(0)
    n_N, k_K = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    there_N = n_N < N
    gate_NK = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    up_NK = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    x_ptr += (pair // TOP_K).to(tl.int64) * x_stride
    wait(CHAINED)
    expert = tl.load(ids_ptr + pair)
    w_ptr += expert.to(tl.int64) * (HALVES * N * K)
    w_ptrs_NK = w_ptr + tl.minimum(n_N, N - 1)[:, None] * K + k_K[None, :]
    for first in tl.range(0, K, BLOCK_K, loop_unroll_factor=UNROLL):
        there_K = k_K + first < K
        w_NK = piece(w_ptrs_NK + first, there_K[None, :], EVEN)
        x_K = piece(x_ptr + k_K + first, there_K, EVEN).to(tl.float32)
        gate_NK += x_K[None, :] * w_NK.to(tl.float32)
        if GATED:
            w_NK = piece(w_ptrs_NK + N * K + first, there_K[None, :], EVEN)
            up_NK += x_K[None, :] * w_NK.to(tl.float32)
    gate_N, up_N = tl.sum(gate_NK, 1), tl.sum(up_NK, 1)
    if BIAS:
        bias_ptrs_N = bias_ptr + expert * (HALVES * N) + n_N
        gate_N += tl.load(bias_ptrs_N, mask=there_N, other=0.0).to(tl.float32)
        if GATED:
            up_N += tl.load(bias_ptrs_N + N, mask=there_N, other=0.0).to(tl.float32)
    inner_N = inner_of(gate_N, up_N, GATED, ACTIVATION, LIMIT, GATE_LIMIT, ALPHA, SHIFT)
    tl.store(inner_ptr + pair * N + n_N, inner_N.to(inner_ptr.dtype.element_ty), mask=there_N)


@triton.jit
def second_alone(
    y_ptr, inner_ptr, w_ptr, bias_ptr, ids_ptr, weights_ptr,
    N: tl.constexpr, K: tl.constexpr, TOP_K: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UNROLL: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Second matrices of a token's experts and their weighted sum. Grid: (tokens, N / BLOCK_N).

    Args:
        inner_ptr: [pairs, K].
        w_ptr, bias_ptr: [experts, N, K] and [experts, N].
    """
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    EVEN: tl.constexpr = K % BLOCK_K == 0
    token = tl.program_id(0)
    n_N, k_K = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    there_N = n_N < N
    row_N = tl.minimum(n_N, N - 1)
    sum_NK = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    bias_N = tl.zeros([BLOCK_N], tl.float32)
    wait(CHAINED)
    for step in tl.range(0, TOP_K * STEPS, loop_unroll_factor=UNROLL):
        pair, at_K = token * TOP_K + step // STEPS, step % STEPS * BLOCK_K + k_K
        expert, weight = tl.load(ids_ptr + pair), tl.load(weights_ptr + pair)
        w_ptrs_NK = w_ptr + expert.to(tl.int64) * (N * K) + row_N[:, None] * K + at_K[None, :]
        w_NK = piece(w_ptrs_NK, (at_K < K)[None, :], EVEN)
        x_K = piece(inner_ptr + pair * K + at_K, at_K < K, EVEN)
        sum_NK += (weight * x_K.to(tl.float32))[None, :] * w_NK.to(tl.float32)
    if BIAS:
        for i in range(TOP_K):
            pair = token * TOP_K + i
            expert, weight = tl.load(ids_ptr + pair), tl.load(weights_ptr + pair)
            bias = tl.load(bias_ptr + expert * N + n_N, mask=there_N, other=0.0)
            bias_N += weight * bias.to(tl.float32)
    y_N = tl.sum(sum_NK, 1) + bias_N
    tl.store(y_ptr + token * N + n_N, y_N.to(y_ptr.dtype.element_ty), mask=there_N)
