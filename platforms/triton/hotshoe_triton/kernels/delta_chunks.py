"""The gated delta rule over prompts, chunk by chunk: four kernels behind each other.

`convolve_chunks` makes q, k and v. Within a chunk, the values that replace others solve a
triangular system. `solve_chunks` inverts the systems of all chunks at once, as these need neither
states nor values. `carry_chunks` takes the state from chunk to chunk, and `norm_chunks` norms and
gates the results. Each is short, as instructions of a long kernel come from memory again and again.

Source: Yang et al. 2024, arXiv:2412.06464, section 3.3; Kimi Team 2025, arXiv:2510.26692.
Shape suffixes: L tokens of a chunk, B blocks of them, K channels of keys, V channels of values.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.delta_channels import fade_by_channel
from hotshoe_triton.kernels.elementwise import exp, sigmoid
from hotshoe_triton.kernels.gated_delta import LENGTH_EPS, log_decay
from hotshoe_triton.kernels.states import (
    FADED,
    FINE,
    add_product,
    block_of,
    chunk_at,
    convolved_tile,
    keep_state,
    load_split,
    product,
    row_of,
    split,
    store_split,
    tokens_of,
)

#: A row has at most so many more chunks than its tokens fill.
SPARE = tl.constexpr(3)
#: Tokens of a block whose system is solved row by row.
BLOCK = tl.constexpr(16)


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
def sums(power):
    """Return running sums of logarithms in two parts, of which the coarse one is exact, and totals.

    One sum would lose the small differences behind a token that leaves nothing of earlier ones.
    """
    power = tl.maximum(power, FADED)
    coarse = tl.floor(power * FINE) / FINE
    rest = power - coarse
    return tl.cumsum(coarse, 0), tl.cumsum(rest, 0), tl.sum(coarse, 0), tl.sum(rest, 0)


@triton.jit
def blocks_of(system_LL):
    """Return the inverses of I + each block on the diagonal: [B, BLOCK, BLOCK].

    Rows are solved one after another, and each is taken from those below it.
    """
    BLOCKS: tl.constexpr = system_LL.shape[0] // BLOCK
    at, at_B = tl.arange(0, BLOCK), tl.arange(0, BLOCKS)
    block = tl.reshape(system_LL, (BLOCKS, BLOCK, BLOCKS, BLOCK))
    same = at_B[:, None, None, None] == at_B[None, None, :, None]
    block = tl.sum(tl.where(same, block, 0.0), 2)
    inverse = tl.where((at[:, None] == at[None, :])[None, :, :], 1.0, tl.zeros_like(block))
    for i in range(BLOCK - 1):
        column = tl.sum(tl.where((at == i)[None, None, :], block, 0.0), 2)
        row = tl.sum(tl.where((at == i)[None, :, None], inverse, 0.0), 1)
        inverse -= column[:, :, None] * row[:, None, :]
    return inverse


@triton.jit
def joined(inverse_LL, system_LL, SIZE: tl.constexpr, PARTS: tl.constexpr):
    """Return inverses of blocks on the diagonal that are twice as large as SIZE."""
    LENGTH: tl.constexpr = system_LL.shape[0]
    block_L = tl.arange(0, LENGTH) // SIZE
    below_LL = (block_L[:, None] == block_L[None, :] + 1) & (block_L[None, :] % 2 == 0)
    nothing_LL = tl.zeros((LENGTH, LENGTH), tl.float32)
    half_LL = tl.where(below_LL, system_LL, 0.0)
    half_LL = product(half_LL, inverse_LL, nothing_LL, PARTS)
    return inverse_LL - product(inverse_LL, half_LL, nothing_LL, PARTS)


@triton.jit
def inverse_of(system_LL, PARTS: tl.constexpr):
    """Return the inverse of I + system, which is strictly lower triangular."""
    LENGTH: tl.constexpr = system_LL.shape[0]
    BLOCKS: tl.constexpr = LENGTH // BLOCK
    at_B = tl.arange(0, BLOCKS)
    same = at_B[:, None, None, None] == at_B[None, None, :, None]
    inverse_LL = tl.where(same, blocks_of(system_LL)[:, :, None, :], 0.0)
    inverse_LL = tl.reshape(inverse_LL, (LENGTH, LENGTH))
    if BLOCKS > 1:
        inverse_LL = joined(inverse_LL, system_LL, BLOCK, PARTS)
    if BLOCKS > 2:
        inverse_LL = joined(inverse_LL, system_LL, 2 * BLOCK, PARTS)
    return inverse_LL


@triton.jit
def decays_by_head(gates_L, bias_ptr, decay_ptr, rate, there_L, FLOOR: tl.constexpr):
    """Return how far all channels decay between two tokens, since a chunk began, until it ends."""
    at_L = tl.arange(0, there_L.shape[0])
    raw_L = tl.load(gates_L, mask=there_L, other=0.0).to(tl.float32) + tl.load(bias_ptr)
    coarse_L, rest_L, total, total_rest = sums(
        tl.where(there_L, log_decay(raw_L, rate, FLOOR), 0.0)
    )
    tl.store(decay_ptr, exp(total + total_rest))
    between_LL = coarse_L[:, None] - coarse_L[None, :] + (rest_L[:, None] - rest_L[None, :])
    causal_LL = at_L[:, None] >= at_L[None, :]
    decay_LL = exp(tl.where(causal_LL, between_LL, float("-inf")))
    until_L = exp(total - coarse_L + (total_rest - rest_L))
    return decay_LL, exp(coarse_L + rest_L), until_L


@triton.jit(do_not_specialize=["rows", "low", "tokens"])
def convolve_chunks(
    inputs_ptr, conv_ptr, taps_ptr, k_ptr, q_ptr, v_ptr, table_ptr, starts_ptr, lens_ptr, rows,
    low, tokens, inputs_stride, conv_stride, table_stride,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    FEW: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr,
    SPAN: tl.constexpr, PARTS: tl.constexpr, STATE_PARTS: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_C: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Make q, k or v of a head. Grid: (chunks, 2 * KEY_HEADS + HEADS).

    Args:
        inputs_ptr: [tokens, q, k, v, z, beta, decays], rows apart.
        conv_ptr: [blocks, WIDTH - 1, q, k, v], blocks apart: inputs of earlier tokens.
        k_ptr: [1 or 2, KEY_HEADS, tokens, K], parts of a number first.
        q_ptr: The same.
        v_ptr: [tokens, HEADS * V] float32.
    """
    SIZE: tl.constexpr = 2 * KEY_HEADS * K + HEADS * V
    place, head, at_C = low + tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK_C)
    wait(CHAINED)
    chunk, begin, before, length = chunk_of(place, starts_ptr, lens_ptr, rows, FEW, SPAN, BLOCK_L)
    if chunk < 0:
        return
    token_L, there_L, _high = tokens_of(chunk, begin, before, length, SPAN, BLOCK_L)
    row = row_of(place, starts_ptr, rows, SPAN // ((SPAN + BLOCK_L - 1) // BLOCK_L), SPARE)
    table_ptr += row.to(tl.int64) * table_stride
    conv_ptr += block_of(table_ptr, before, BLOCK_SIZE, SINGLE) * conv_stride
    of_v = head - 2 * KEY_HEADS
    first = tl.where(of_v < 0, head * K, 2 * KEY_HEADS * K + of_v * V)
    there_C = at_C < tl.where(of_v < 0, K, V)
    there_LC = there_L[:, None] & there_C[None, :]
    x_LC = convolved_tile(
        inputs_ptr, conv_ptr, taps_ptr, token_L, there_L, begin, before > 0, first + at_C, there_C,
        inputs_stride, SIZE, WIDTH,
    )  # fmt: skip
    if of_v >= 0:
        v_ptrs_LC = v_ptr + token_L[:, None] * (HEADS * V) + (of_v * V + at_C)[None, :]
        tl.store(v_ptrs_LC, x_LC, mask=there_LC)
    else:
        x_LC *= tl.rsqrt(tl.sum(x_LC * x_LC, 1) + LENGTH_EPS)[:, None]
        own_L = (head % KEY_HEADS).to(tl.int64) * tokens + token_L
        own_LC, apart = own_L[:, None] * K + at_C[None, :], tokens.to(tl.int64) * (KEY_HEADS * K)
        if head < KEY_HEADS:
            store_split(q_ptr + own_LC, apart, x_LC * (K**-0.5), there_LC, PARTS)
        else:
            store_split(k_ptr + own_LC, apart, x_LC, there_LC, STATE_PARTS)


@triton.jit
def fade_by_head(
    gates_L, bias_ptr, decay_ptr, rate, there_L, faded_ptrs_L, apart, q_LK, low_q_LK, k_LK,
    low_k_LK, PARTS: tl.constexpr, STATE_PARTS: tl.constexpr, FLOOR: tl.constexpr,
):  # fmt: skip
    """Store decays since a chunk began and until it ends, and return k k^T and q k^T, decayed."""
    decay_LL, since_L, until_L = decays_by_head(gates_L, bias_ptr, decay_ptr, rate, there_L, FLOOR)
    tl.store(faded_ptrs_L, since_L, mask=there_L)
    tl.store(faded_ptrs_L + apart, until_L, mask=there_L)
    turned_KL, low_KL = tl.trans(k_LK), tl.trans(low_k_LK)
    nothing_LL = tl.zeros(decay_LL.shape, tl.float32)
    system_LL = add_product(k_LK, low_k_LK, turned_KL, low_KL, nothing_LL, STATE_PARTS)
    scores_LL = add_product(q_LK, low_q_LK, turned_KL, low_KL, nothing_LL, PARTS)
    return system_LL * decay_LL, scores_LL * decay_LL


@triton.jit
def solve(
    system_LL, scores_LL, beta_L, solved_ptr, scores_ptr, own_L, there_L, apart,
    PARTS: tl.constexpr, STATE_PARTS: tl.constexpr,
):  # fmt: skip
    """Store q k^T, and what makes new values of wanted ones."""
    LENGTH: tl.constexpr = system_LL.shape[0]
    at_L = tl.arange(0, LENGTH)
    own_LL = own_L[:, None] * LENGTH + at_L[None, :]
    there_LL = there_L[:, None] & (at_L[None, :] >= 0)
    store_split(scores_ptr + own_LL, apart * LENGTH, scores_LL, there_LL, PARTS)
    system_LL = tl.where(at_L[:, None] > at_L[None, :], system_LL * beta_L[:, None], 0.0)
    solved_LL = inverse_of(system_LL, STATE_PARTS) * beta_L[None, :]
    store_split(solved_ptr + own_LL, apart * LENGTH, solved_LL, there_LL, STATE_PARTS)


@triton.jit(do_not_specialize=["rows", "low", "tokens"])
def solve_chunks(
    gates_ptr, k_ptr, q_ptr, since_k_ptr, until_k_ptr, since_q_ptr, solved_ptr, scores_ptr,
    faded_ptr, decay_ptr, rate_ptr, bias_ptr, starts_ptr, lens_ptr, rows, low, tokens, gates_stride,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    CHANNELS: tl.constexpr, FEW: tl.constexpr, SPAN: tl.constexpr, PARTS: tl.constexpr,
    STATE_PARTS: tl.constexpr, LEVELS: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr,
    BETA: tl.constexpr, FLOOR: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Compute all of a chunk that needs neither state nor values. Grid: (chunks, HEADS).

    Args:
        gates_ptr: [tokens, z, beta, decays], rows apart.
        k_ptr, q_ptr: As `convolve_chunks` leaves them.
        since_k_ptr, until_k_ptr, since_q_ptr: With CHANNELS the same for each of HEADS, decayed
            since the chunk began, and until it ends.
        solved_ptr: [1 or 2, HEADS, tokens, BLOCK_L]: makes new values of wanted ones.
        scores_ptr: The same: q k^T, decayed, causal.
        faded_ptr: [2, HEADS, tokens] float32: decays since the chunk began, and until it ends;
            not with CHANNELS.
        decay_ptr: [chunks, HEADS, K or 1] float32: what the chunk leaves of the state before.
        BLOCK_L: 2 to the power of LEVELS.
    """
    place, head, at_K = low + tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK_K)
    rate = tl.load(rate_ptr + head)
    wait(CHAINED)
    chunk, begin, before, length = chunk_of(place, starts_ptr, lens_ptr, rows, FEW, SPAN, BLOCK_L)
    if chunk < 0:
        return
    token_L, there_L, _high = tokens_of(chunk, begin, before, length, SPAN, BLOCK_L)
    all_tokens = tokens.to(tl.int64)
    shared_L = head // (HEADS // KEY_HEADS) * all_tokens + token_L
    shared_apart, apart = all_tokens * KEY_HEADS, all_tokens * HEADS
    own_L, side_L = head * all_tokens + token_L, gates_ptr + token_L * gates_stride + HEADS * V
    raw_L = tl.load(side_L + head, mask=there_L, other=float("-inf"))
    beta_L = BETA * sigmoid(raw_L.to(tl.float32))
    if CHANNELS:
        system_LL, scores_LL = fade_by_channel(
            side_L + HEADS + head * K, bias_ptr + head * K,
            decay_ptr + (place.to(tl.int64) * HEADS + head) * K, k_ptr, q_ptr, since_k_ptr,
            until_k_ptr, since_q_ptr, rate, shared_L, own_L, there_L, shared_apart, apart, K,
            LEVELS, PARTS, STATE_PARTS, BLOCK_K, FLOOR,
        )  # fmt: skip
    else:
        there_LK = there_L[:, None] & (at_K < K)[None, :]
        shared_LK = shared_L[:, None] * K + at_K[None, :]
        k_LK, low_k_LK = load_split(k_ptr + shared_LK, shared_apart * K, there_LK, STATE_PARTS)
        q_LK, low_q_LK = load_split(q_ptr + shared_LK, shared_apart * K, there_LK, PARTS)
        system_LL, scores_LL = fade_by_head(
            side_L + HEADS + head, bias_ptr + head,
            decay_ptr + place.to(tl.int64) * HEADS + head, rate, there_L, faded_ptr + own_L, apart,
            q_LK, low_q_LK, k_LK, low_k_LK, PARTS, STATE_PARTS, FLOOR,
        )  # fmt: skip
    solve(
        system_LL, scores_LL, beta_L, solved_ptr, scores_ptr, own_L, there_L, apart, PARTS,
        STATE_PARTS,
    )  # fmt: skip


@triton.jit
def take_chunk(
    state_VK, v_VL, k_ptr, until_k_ptr, q_ptr, solved_ptr, scores_ptr, decay, since_L, until_L,
    shared_L, own_L, there_L, there_K, shared_apart, apart,
    K: tl.constexpr, CHANNELS: tl.constexpr, PARTS: tl.constexpr, STATE_PARTS: tl.constexpr,
):  # fmt: skip
    """Return a chunk's results and the state behind it.

    Args:
        shared_L, own_L: Places of the chunk's tokens among those of all heads that k has, and that
            there are; `shared_apart` and `apart` is how many these are.
    """
    LENGTH: tl.constexpr = own_L.shape[0]
    at_L, at_K = tl.arange(0, LENGTH), tl.arange(0, state_VK.shape[1])
    at_LK, there_LK = shared_L[:, None] * K + at_K[None, :], there_L[:, None] & there_K[None, :]
    at_LL = own_L[:, None] * LENGTH + at_L[None, :]
    there_LL = there_L[:, None] & (at_L[None, :] >= 0)
    k_LK, low_k_LK = load_split(k_ptr + at_LK, shared_apart * K, there_LK, STATE_PARTS)
    q_LK, low_q_LK = load_split(q_ptr + at_LK, shared_apart * K, there_LK, PARTS)
    solved_LL, low_solved_LL = load_split(solved_ptr + at_LL, apart * LENGTH, there_LL, STATE_PARTS)
    scores_LL, low_LL = load_split(scores_ptr + at_LL, apart * LENGTH, there_LL, PARTS)
    nothing_VL = tl.zeros(v_VL.shape, tl.float32)
    high_VK, low_VK = split(state_VK, STATE_PARTS)
    found_VL = add_product(
        high_VK, low_VK, tl.trans(k_LK), tl.trans(low_k_LK), nothing_VL, STATE_PARTS
    )
    y_VL = add_product(high_VK, low_VK, tl.trans(q_LK), tl.trans(low_q_LK), nothing_VL, PARTS)
    if not CHANNELS:
        found_VL, y_VL = found_VL * since_L[None, :], y_VL * since_L[None, :]
    wanted_VL, low_VL = split(v_VL - found_VL, STATE_PARTS)
    new_VL = add_product(
        wanted_VL, low_VL, tl.trans(solved_LL), tl.trans(low_solved_LL), nothing_VL, STATE_PARTS
    )
    high_VL, low_VL = split(new_VL, STATE_PARTS)
    y_VL = add_product(high_VL, low_VL, tl.trans(scores_LL), tl.trans(low_LL), y_VL, PARTS)
    if CHANNELS:
        k_LK, low_k_LK = load_split(until_k_ptr + at_LK, shared_apart * K, there_LK, STATE_PARTS)
    else:
        high_VL, low_VL = split(new_VL * until_L[None, :], STATE_PARTS)
    return y_VL, add_product(high_VL, low_VL, k_LK, low_k_LK, state_VK * decay, STATE_PARTS)


@triton.jit
def part_of(
    row, starts_ptr, lens_ptr, low, above, FEW: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Return a row's first token, tokens before and length, what leads from a chunk to its place,
    the first and last chunk within places, and behind how many tokens the state is to begin with.
    """
    PIECES: tl.constexpr = (SPAN + BLOCK_L - 1) // BLOCK_L
    begin, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    length = tl.load(lens_ptr + row)
    before = length - (end - begin)
    first, last = chunk_at(before, SPAN, BLOCK_L), chunk_at(length - 1, SPAN, BLOCK_L)
    place = begin // (SPAN // PIECES) + SPARE * row - first
    source = tl.where(low - place > first, length, before)
    first, last = tl.maximum(first, low - place), tl.minimum(last, above - place - 1)
    last = tl.where(end - begin > FEW, last, first - 1)
    return begin, before, length, place.to(tl.int64), first, last, source


@triton.jit(do_not_specialize=["low", "above", "tokens"])
def carry_chunks(
    y_ptr, v_ptr, k_ptr, until_k_ptr, q_ptr, solved_ptr, scores_ptr, faded_ptr, decay_ptr,
    cache_ptr, table_ptr, starts_ptr, lens_ptr, low, above, tokens, block_stride, table_stride,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    CHANNELS: tl.constexpr, FEW: tl.constexpr, SPAN: tl.constexpr, PARTS: tl.constexpr,
    STATE_PARTS: tl.constexpr, BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr, ALL: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Take each sequence's state through its chunks. Grid: (rows, HEADS, V / BLOCK_V).

    Args:
        y_ptr: [tokens, HEADS * V], the results.
        cache_ptr: [blocks, HEADS, V, K], blocks apart.
        low, above: Places of the chunks to take. A state between two launches is where the last
            one of its sequence will be.
    """
    SHARED: tl.constexpr = HEADS if CHANNELS else KEY_HEADS
    row, head = tl.program_id(0), tl.program_id(1)
    at_K, at_V = tl.arange(0, BLOCK_K), tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    there_K, there_V = at_K < K, at_V < V
    wait(CHAINED)
    begin, before, length, place, first, last, source = part_of(
        row, starts_ptr, lens_ptr, low, above, FEW, SPAN, BLOCK_L
    )
    if first > last:
        return
    table_ptr += row.to(tl.int64) * table_stride
    cache_ptr += head * V * K + at_V[:, None] * K + at_K[None, :]
    there_VK = there_V[:, None] & there_K[None, :]
    read = block_of(table_ptr, source, BLOCK_SIZE, SINGLE) * block_stride
    state_VK = tl.load(cache_ptr + read, mask=there_VK & (source > 0), other=0.0).to(tl.float32)
    all_tokens = tokens.to(tl.int64)
    for chunk in range(first, last + 1):
        token_L, there_L, high = tokens_of(chunk, begin, before, length, SPAN, BLOCK_L)
        own_L = head * all_tokens + token_L
        since_L, until_L = own_L, own_L
        if CHANNELS:
            at = ((place + chunk) * HEADS + head) * K + at_K
            decay = tl.load(decay_ptr + at, mask=there_K, other=0.0)[None, :]
        else:
            decay = tl.load(decay_ptr + (place + chunk) * HEADS + head)
            since_L = tl.load(faded_ptr + own_L, mask=there_L, other=0.0)
            until_L = tl.load(faded_ptr + all_tokens * HEADS + own_L, mask=there_L, other=0.0)
        at_VL = (head * V + at_V)[:, None] + token_L[None, :] * (HEADS * V)
        there_VL = there_V[:, None] & there_L[None, :]
        v_VL = tl.load(v_ptr + at_VL, mask=there_VL, other=0.0)
        y_VL, state_VK = take_chunk(
            state_VK, v_VL, k_ptr, until_k_ptr, q_ptr, solved_ptr, scores_ptr, decay, since_L,
            until_L, head // (HEADS // SHARED) * all_tokens + token_L, own_L, there_L, there_K,
            all_tokens * SHARED, all_tokens * HEADS, K, CHANNELS, PARTS, STATE_PARTS,
        )  # fmt: skip
        tl.store(y_ptr + at_VL, y_VL.to(y_ptr.dtype.element_ty), mask=there_VL)
        if ALL:
            whole = (high % BLOCK_SIZE == 0) & (high < length)
            if whole:
                keep_state(
                    cache_ptr, table_ptr, high, state_VK, there_VK, block_stride, BLOCK_SIZE, SINGLE
                )
    keep_state(cache_ptr, table_ptr, length, state_VK, there_VK, block_stride, BLOCK_SIZE, SINGLE)


@triton.jit(do_not_specialize=["rows", "low"])
def norm_chunks(
    out_ptr, y_ptr, gates_ptr, norm_ptr, starts_ptr, lens_ptr, rows, low, gates_stride,
    HEADS: tl.constexpr, V: tl.constexpr, SILU: tl.constexpr, EPS: tl.constexpr,
    FEW: tl.constexpr, SPAN: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_V: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Norm and gate each result that `carry_chunks` left, in place too. Grid: (chunks, HEADS)."""
    head, at_V = tl.program_id(1), tl.arange(0, BLOCK_V)
    there_V = at_V < V
    weight_V = tl.load(norm_ptr + at_V, mask=there_V, other=0.0).to(tl.float32)
    wait(CHAINED)
    chunk, begin, before, length = chunk_of(
        low + tl.program_id(0), starts_ptr, lens_ptr, rows, FEW, SPAN, BLOCK_L
    )
    if chunk < 0:
        return
    token_L, there_L, _high = tokens_of(chunk, begin, before, length, SPAN, BLOCK_L)
    there_LV, at_V = there_L[:, None] & there_V[None, :], head * V + at_V
    place_LV = token_L[:, None] * (HEADS * V) + at_V[None, :]
    y_LV = tl.load(y_ptr + place_LV, mask=there_LV, other=0.0).to(tl.float32)
    z_L = gates_ptr + token_L * gates_stride
    z_LV = tl.load(z_L[:, None] + at_V[None, :], mask=there_LV, other=0.0).to(tl.float32)
    gate_LV = sigmoid(z_LV)
    if SILU:
        gate_LV *= z_LV
    scale_L = tl.rsqrt(tl.sum(y_LV * y_LV, 1) / V + EPS)
    y_LV *= scale_L[:, None] * weight_V[None, :] * gate_LV
    tl.store(out_ptr + place_LV, y_LV.to(out_ptr.dtype.element_ty), mask=there_LV)
