"""The gated delta rule over prompts, chunk by chunk: three kernels behind each other.

Within a chunk, the values that replace others solve a triangular system. `solve_chunks` does so for
all chunks at once, as it needs no state. `carry_chunks` takes the state from chunk to chunk, and
`norm_chunks` norms and gates the results.

Source: Yang et al. 2024, arXiv:2412.06464, section 3.3; Kimi Team 2025, arXiv:2510.26692.
Shape suffixes: L tokens of a chunk, K channels of keys, V channels of values.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import sigmoid
from hotshoe_triton.kernels.gated_delta import LENGTH_EPS
from hotshoe_triton.kernels.states import (
    FADED,
    FINE,
    add_product,
    block_of,
    chunk_at,
    keep_state,
    load_split,
    product,
    row_of,
    softplus,
    split,
    store_split,
    tokens_of,
)

#: A row has at most so many more chunks than its tokens fill.
SPARE = tl.constexpr(3)


@triton.jit
def chunk_of(
    place, starts_ptr, lens_ptr, rows, FEW: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Return a chunk's number or -1 for none, and its row's first token, tokens before and length.

    Args:
        place: Among the chunks of all rows, where each row has room for all that it may need.
    """
    PIECES: tl.constexpr = (SPAN + BLOCK_L - 1) // BLOCK_L
    row = row_of(place, starts_ptr, rows, SPAN // PIECES, SPARE)
    begin, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    length = tl.load(lens_ptr + row)
    before = length - (end - begin)
    chunk = place - begin // (SPAN // PIECES) - SPARE * row
    chunk += chunk_at(before, SPAN, BLOCK_L)
    there = (end - begin > FEW) & (chunk <= chunk_at(length - 1, SPAN, BLOCK_L))
    chunk = tl.where(there, chunk, -1)
    return chunk, begin, before, length


@triton.jit
def directions(at_LK, there_LK):
    """Load vectors and bring them to length 1."""
    x_LK = tl.load(at_LK, mask=there_LK, other=0.0)
    return x_LK * tl.rsqrt(tl.sum(x_LK * x_LK, 1) + LENGTH_EPS)[:, None]


@triton.jit
def sums(power):
    """Return running sums of logarithms in two parts, of which the coarse one is exact, and totals.

    One sum would lose the small differences behind a token that leaves nothing of earlier ones.
    """
    power = tl.maximum(power, FADED)
    coarse = tl.floor(power * FINE) / FINE
    rest = power - coarse
    return tl.cumsum(coarse, 0), tl.cumsum(rest, 0), tl.sum(coarse, 0), tl.sum(rest, 0)


@triton.jit
def pairs_by_channel(q_LK, k_LK, coarse_LK, rest_LK):
    """Return k k^T and q k^T, causal, each channel with its own decay between two tokens."""
    LENGTH: tl.constexpr = q_LK.shape[0]
    at_L = tl.arange(0, LENGTH)
    system_LL = tl.zeros((LENGTH, LENGTH), tl.float32)
    scores_LL = tl.zeros((LENGTH, LENGTH), tl.float32)
    for j in range(LENGTH):
        only_L1 = (at_L == j)[:, None]
        coarse_K = tl.sum(tl.where(only_L1, coarse_LK, 0.0), 0)
        rest_K = tl.sum(tl.where(only_L1, rest_LK, 0.0), 0)
        between_LK = coarse_LK - coarse_K[None, :] + (rest_LK - rest_K[None, :])
        left_LK = tl.exp(tl.minimum(between_LK, 0.0))
        left_LK *= tl.sum(tl.where(only_L1, k_LK, 0.0), 0)[None, :]
        column_1L = (at_L == j)[None, :]
        system_LL = tl.where(column_1L, tl.sum(k_LK * left_LK, 1)[:, None], system_LL)
        scores_LL = tl.where(column_1L, tl.sum(q_LK * left_LK, 1)[:, None], scores_LL)
    return system_LL, tl.where(at_L[:, None] >= at_L[None, :], scores_LL, 0.0)


@triton.jit
def inverse_of(system_LL):
    """Return the inverse of I + system, which is strictly lower triangular, row by row."""
    LENGTH: tl.constexpr = system_LL.shape[0]
    at_L = tl.arange(0, LENGTH)
    turned_LL = tl.trans(system_LL)
    inverse_LL = tl.where(at_L[:, None] == at_L[None, :], 1.0, 0.0)
    for i in range(1, LENGTH):
        row_L = tl.sum(tl.where(at_L[None, :] == i, turned_LL, 0.0), 1)
        known_L = tl.sum(row_L[:, None] * inverse_LL, 0)
        inverse_LL = tl.where(at_L[:, None] == i, inverse_LL - known_L[None, :], inverse_LL)
    return inverse_LL


@triton.jit
def decays_by_channel(
    gates_L, bias_ptr, decay_ptr, q_LK, k_LK, rate, there_L, there_K,
):  # fmt: skip
    """Return k k^T, q k^T and how far channels decay since a chunk began and until it ends."""
    at_K, there_LK = tl.arange(0, q_LK.shape[1]), there_L[:, None] & there_K[None, :]
    raw_LK = tl.load(gates_L[:, None] + at_K[None, :], mask=there_LK, other=0.0).to(tl.float32)
    raw_LK += tl.load(bias_ptr + at_K, mask=there_K, other=0.0)[None, :]
    coarse_LK, rest_LK, total_K, total_rest_K = sums(
        tl.where(there_LK, rate * softplus(raw_LK), 0.0)
    )
    tl.store(decay_ptr + at_K, tl.exp(total_K + total_rest_K), mask=there_K)
    system_LL, scores_LL = pairs_by_channel(q_LK, k_LK, coarse_LK, rest_LK)
    until_LK = tl.exp(total_K[None, :] - coarse_LK + (total_rest_K[None, :] - rest_LK))
    return system_LL, scores_LL, tl.exp(coarse_LK + rest_LK), until_LK


@triton.jit
def decays_by_head(
    gates_L, bias_ptr, decay_ptr, q_LK, k_LK, rate, there_L,
    PARTS: tl.constexpr, STATE_PARTS: tl.constexpr,
):  # fmt: skip
    """Return the same, with one decay for all channels."""
    LENGTH: tl.constexpr = q_LK.shape[0]
    at_L = tl.arange(0, LENGTH)
    raw_L = tl.load(gates_L, mask=there_L, other=0.0).to(tl.float32) + tl.load(bias_ptr)
    coarse_L, rest_L, total, total_rest = sums(tl.where(there_L, rate * softplus(raw_L), 0.0))
    tl.store(decay_ptr, tl.exp(total + total_rest))
    between_LL = coarse_L[:, None] - coarse_L[None, :] + (rest_L[:, None] - rest_L[None, :])
    causal_LL = at_L[:, None] >= at_L[None, :]
    decay_LL = tl.exp(tl.where(causal_LL, between_LL, float("-inf")))
    nothing_LL = tl.zeros((LENGTH, LENGTH), tl.float32)
    system_LL = product(k_LK, tl.trans(k_LK), nothing_LL, STATE_PARTS) * decay_LL
    scores_LL = product(q_LK, tl.trans(k_LK), nothing_LL, PARTS) * decay_LL
    until_L = tl.exp(total - coarse_L + (total_rest - rest_L))
    return system_LL, scores_LL, tl.exp(coarse_L + rest_L)[:, None], until_L[:, None]


@triton.jit
def solve(
    inverse_LL, keys_LK, beta_L, w_ptrs_LK, v_ptrs_LV, apart, there_LK, there_LV,
    STATE_PARTS: tl.constexpr,
):  # fmt: skip
    """Store what a chunk takes from the state, and what it adds where its values are."""
    w_LK = tl.zeros(keys_LK.shape, tl.float32)
    w_LK = product(inverse_LL, keys_LK, w_LK, STATE_PARTS)
    store_split(w_ptrs_LK, apart, w_LK, there_LK, STATE_PARTS)
    value_LV = tl.load(v_ptrs_LV, mask=there_LV, other=0.0) * beta_L[:, None]
    new_LV = tl.zeros(value_LV.shape, tl.float32)
    tl.store(v_ptrs_LV, product(inverse_LL, value_LV, new_LV, STATE_PARTS), mask=there_LV)


@triton.jit
def solve_chunks(
    mixed_ptr, gates_ptr, w_ptr, q_ptr, k_ptr, scores_ptr, decay_ptr, rate_ptr, bias_ptr,
    starts_ptr, lens_ptr, rows, tokens, gates_stride,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    CHANNELS: tl.constexpr, FEW: tl.constexpr, SPAN: tl.constexpr, PARTS: tl.constexpr,
    STATE_PARTS: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Compute what a chunk adds and takes, whatever the state before it. Grid: (chunks, HEADS).

    Args:
        mixed_ptr: [tokens, 2 * KEY_HEADS * K + HEADS * V] float32: q, k, v; for v come the values
            that replace others where the state is 0.
        gates_ptr: [tokens, HEADS * V + HEADS + decays], rows apart: z, beta, decays.
        w_ptr: [1 or 2, HEADS, tokens, K], parts of a number first: times the state, what is taken
            from these values.
        q_ptr, k_ptr: The same: q, decayed since the chunk began, and k until it ends.
        scores_ptr: [1 or 2, HEADS, tokens, BLOCK_L]: q k^T, decayed, causal.
        decay_ptr: [chunks, HEADS, K or 1] float32: what the chunk leaves of the state before.
    """
    place, head = tl.program_id(0), tl.program_id(1)
    at_L, at_K, at_V = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    there_K, there_V, rate = at_K < K, at_V < V, tl.load(rate_ptr + head)
    wait(CHAINED)
    chunk, begin, before, length = chunk_of(place, starts_ptr, lens_ptr, rows, FEW, SPAN, BLOCK_L)
    if chunk < 0:
        return
    token_L, there_L, _high = tokens_of(chunk, begin, before, length, SPAN, BLOCK_L)
    there_LK = there_L[:, None] & there_K[None, :]
    source_L = mixed_ptr + token_L * (2 * KEY_HEADS * K + HEADS * V)
    key_LK = source_L[:, None] + (head // (HEADS // KEY_HEADS) * K + at_K)[None, :]
    q_LK = directions(key_LK, there_LK) * (K**-0.5)
    k_LK = directions(key_LK + KEY_HEADS * K, there_LK)
    side_L = gates_ptr + token_L * gates_stride + HEADS * V
    beta_L = sigmoid(tl.load(side_L + head, mask=there_L, other=0.0).to(tl.float32))
    beta_L = tl.where(there_L, beta_L, 0.0)
    if CHANNELS:
        decay_ptr += (place.to(tl.int64) * HEADS + head) * K
        system_LL, scores_LL, since_LK, until_LK = decays_by_channel(
            side_L + HEADS + head * K, bias_ptr + head * K, decay_ptr, q_LK, k_LK, rate, there_L,
            there_K,
        )  # fmt: skip
    else:
        decay_ptr += place.to(tl.int64) * HEADS + head
        system_LL, scores_LL, since_LK, until_LK = decays_by_head(
            side_L + HEADS + head, bias_ptr + head, decay_ptr, q_LK, k_LK, rate, there_L, PARTS,
            STATE_PARTS,
        )  # fmt: skip
    place_L = head.to(tl.int64) * tokens + token_L
    place_LK, apart = place_L[:, None] * K + at_K[None, :], tokens.to(tl.int64) * HEADS
    store_split(q_ptr + place_LK, apart * K, q_LK * since_LK, there_LK, PARTS)
    store_split(k_ptr + place_LK, apart * K, k_LK * until_LK, there_LK, STATE_PARTS)
    scores_ptr += place_L[:, None] * BLOCK_L + at_L[None, :]
    store_split(scores_ptr, apart * BLOCK_L, scores_LL, there_L[:, None], PARTS)
    system_LL = tl.where(at_L[:, None] > at_L[None, :], system_LL * beta_L[:, None], 0.0)
    v_LV = source_L[:, None] + (2 * KEY_HEADS * K + head * V + at_V)[None, :]
    solve(
        inverse_of(system_LL), k_LK * since_LK * beta_L[:, None], beta_L, w_ptr + place_LK, v_LV,
        apart * K, there_LK, there_L[:, None] & there_V[None, :], STATE_PARTS,
    )  # fmt: skip


@triton.jit
def take_chunk(
    state_VK, v_ptrs_LV, w_ptr, q_ptr, k_ptr, scores_ptr, decay, place_L, there_L, there_K, there_V,
    apart, K: tl.constexpr, PARTS: tl.constexpr, STATE_PARTS: tl.constexpr,
):  # fmt: skip
    """Store a chunk's results where its values are, and return the state behind it.

    Args:
        place_L: Of the chunk's tokens among those of all heads; `apart` is how many these are.
    """
    LENGTH: tl.constexpr = place_L.shape[0]
    at_L, at_K = tl.arange(0, LENGTH), tl.arange(0, state_VK.shape[1])
    place_LK, there_LK = place_L[:, None] * K + at_K[None, :], there_L[:, None] & there_K[None, :]
    place_LL = place_L[:, None] * LENGTH + at_L[None, :]
    w_LK, low_w_LK = load_split(w_ptr + place_LK, apart * K, there_LK, STATE_PARTS)
    k_LK, low_k_LK = load_split(k_ptr + place_LK, apart * K, there_LK, STATE_PARTS)
    q_LK, low_q_LK = load_split(q_ptr + place_LK, apart * K, there_LK, PARTS)
    scores_LL, low_LL = load_split(scores_ptr + place_LL, apart * LENGTH, there_L[:, None], PARTS)
    there_LV = there_L[:, None] & there_V[None, :]
    high_KV, low_KV = split(tl.trans(state_VK), STATE_PARTS)
    new_LV = tl.load(v_ptrs_LV, mask=there_LV, other=0.0)
    nothing_LV = tl.zeros(new_LV.shape, tl.float32)
    new_LV -= add_product(w_LK, low_w_LK, high_KV, low_KV, nothing_LV, STATE_PARTS)
    y_LV = add_product(q_LK, low_q_LK, high_KV, low_KV, nothing_LV, PARTS)
    new_LV, low_LV = split(new_LV, STATE_PARTS)
    y_LV = add_product(scores_LL, low_LL, new_LV, low_LV, y_LV, PARTS)
    tl.store(v_ptrs_LV, y_LV, mask=there_LV)
    new_VL, low_VL = tl.trans(new_LV), tl.trans(low_LV)
    return add_product(new_VL, low_VL, k_LK, low_k_LK, state_VK * decay, STATE_PARTS)


@triton.jit
def carry_chunks(
    mixed_ptr, w_ptr, q_ptr, k_ptr, scores_ptr, decay_ptr, cache_ptr, table_ptr, starts_ptr,
    lens_ptr, tokens, block_stride, table_stride,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    CHANNELS: tl.constexpr, FEW: tl.constexpr, SPAN: tl.constexpr, PARTS: tl.constexpr,
    STATE_PARTS: tl.constexpr, BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr, ALL: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Take each sequence's state through its chunks. Grid: (rows, HEADS, V / BLOCK_V).

    Args:
        mixed_ptr: As `solve_chunks` leaves it; for v come the results.
        cache_ptr: [blocks, HEADS, V, K], blocks apart.
    """
    PIECES: tl.constexpr = (SPAN + BLOCK_L - 1) // BLOCK_L
    row, head = tl.program_id(0), tl.program_id(1)
    at_K, at_V = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    at_V += tl.program_id(2) * BLOCK_V
    there_K, there_V = at_K < K, at_V < V
    wait(CHAINED)
    begin, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    if end - begin <= FEW:
        return
    length = tl.load(lens_ptr + row)
    before = length - (end - begin)
    table_ptr += row.to(tl.int64) * table_stride
    cache_ptr += head * V * K + at_V[:, None] * K + at_K[None, :]
    there_VK = there_V[:, None] & there_K[None, :]
    read = block_of(table_ptr, before, BLOCK_SIZE, SINGLE) * block_stride
    state_VK = tl.load(cache_ptr + read, mask=there_VK & (before > 0), other=0.0).to(tl.float32)
    first, last = chunk_at(before, SPAN, BLOCK_L), chunk_at(length - 1, SPAN, BLOCK_L)
    place = (begin // (SPAN // PIECES) + SPARE * row - first).to(tl.int64)
    mixed_ptr += 2 * KEY_HEADS * K + head * V
    apart = tokens.to(tl.int64) * HEADS
    for chunk in range(first, last + 1):
        token_L, there_L, high = tokens_of(chunk, begin, before, length, SPAN, BLOCK_L)
        if CHANNELS:
            at = ((place + chunk) * HEADS + head) * K + at_K
            decay = tl.load(decay_ptr + at, mask=there_K, other=0.0)[None, :]
        else:
            decay = tl.load(decay_ptr + (place + chunk) * HEADS + head)
        v_L = mixed_ptr + token_L * (2 * KEY_HEADS * K + HEADS * V)
        state_VK = take_chunk(
            state_VK, v_L[:, None] + at_V[None, :], w_ptr, q_ptr, k_ptr, scores_ptr, decay,
            head.to(tl.int64) * tokens + token_L, there_L, there_K, there_V, apart, K, PARTS,
            STATE_PARTS,
        )  # fmt: skip
        if ALL:
            whole = (high % BLOCK_SIZE == 0) & (high < length)
            if whole:
                keep_state(
                    cache_ptr, table_ptr, high, state_VK, there_VK, block_stride, BLOCK_SIZE, SINGLE
                )
    keep_state(cache_ptr, table_ptr, length, state_VK, there_VK, block_stride, BLOCK_SIZE, SINGLE)


@triton.jit
def norm_chunks(
    out_ptr, mixed_ptr, gates_ptr, norm_ptr, starts_ptr, lens_ptr, rows, gates_stride,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    SILU: tl.constexpr, EPS: tl.constexpr, FEW: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_V: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Norm and gate each result that `carry_chunks` left. Grid: (chunks, HEADS)."""
    head, at_V = tl.program_id(1), tl.arange(0, BLOCK_V)
    there_V = at_V < V
    weight_V = tl.load(norm_ptr + at_V, mask=there_V, other=0.0).to(tl.float32)
    wait(CHAINED)
    chunk, begin, before, length = chunk_of(
        tl.program_id(0), starts_ptr, lens_ptr, rows, FEW, SPAN, BLOCK_L
    )
    if chunk < 0:
        return
    token_L, there_L, _high = tokens_of(chunk, begin, before, length, SPAN, BLOCK_L)
    there_LV, at_V = there_L[:, None] & there_V[None, :], head * V + at_V
    y_L = mixed_ptr + token_L * (2 * KEY_HEADS * K + HEADS * V) + 2 * KEY_HEADS * K
    y_LV = tl.load(y_L[:, None] + at_V[None, :], mask=there_LV, other=0.0)
    z_L = gates_ptr + token_L * gates_stride
    z_LV = tl.load(z_L[:, None] + at_V[None, :], mask=there_LV, other=0.0).to(tl.float32)
    gate_LV = sigmoid(z_LV)
    if SILU:
        gate_LV *= z_LV
    scale_L = tl.rsqrt(tl.sum(y_LV * y_LV, 1) / V + EPS)
    y_LV *= scale_L[:, None] * weight_V[None, :] * gate_LV
    place_LV = out_ptr + token_L[:, None] * (HEADS * V) + at_V[None, :]
    tl.store(place_LV, y_LV.to(out_ptr.dtype.element_ty), mask=there_LV)
