"""Mamba-2 behind its convolution: the scan over states, then the gate and the norm.

A program holds some channels of one head's state in registers, from the first token of its sequence
to the last. Decoding takes one token. Prompts go chunk by chunk: within a chunk the recurrence is a
masked matrix product, and the state carries over to the next.

Source: Dao and Gu 2024, arXiv:2405.21060, section 6.
Shape suffixes: L tokens of a chunk, P channels of a head, N entries of a channel's state, C
channels of a part that is normed.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import sigmoid
from hotshoe_triton.kernels.states import (
    FADED,
    FINE,
    add_product,
    block_of,
    chunk_at,
    keep_state,
    load_split,
    product,
    softplus,
    split,
    tokens_of,
)


@triton.jit
def time_step(raw, bias, LEAST: tl.constexpr, MOST: tl.constexpr):
    """Return softplus(raw + bias) within its limits, NaN as NaN."""
    dt = softplus(raw.to(tl.float32) + bias)
    dt = tl.where(dt < LEAST, LEAST, dt)
    return tl.where(dt > MOST, MOST, dt)


@triton.jit
def gate_of(z_ptrs, there, SILU: tl.constexpr):
    """Load gates, with SiLU or as they are."""
    z = tl.load(z_ptrs, mask=there, other=0.0).to(tl.float32)
    if SILU:
        z *= sigmoid(z)
    return z


@triton.jit
def store_gated(out_ptrs, z_ptrs, y, there, SILU: tl.constexpr):
    """Gate results and store them."""
    y *= gate_of(z_ptrs, there, SILU)
    tl.store(out_ptrs, y.to(out_ptrs.dtype.element_ty), mask=there)


@triton.jit
def gated(at_C, there_C, y_ptr, z_ptr, BEFORE: tl.constexpr, SILU: tl.constexpr):
    """Load a token's result, which other programs have just written, as the norm takes it."""
    y_C = tl.load(y_ptr + at_C, mask=there_C, other=0.0, cache_modifier=".cg")
    if not BEFORE:
        y_C *= gate_of(z_ptr + at_C, there_C, SILU)
    return y_C


@triton.jit
def norm_part(
    out_ptr, y_ptr, z_ptr, weight_ptr,
    PART: tl.constexpr, EPS: tl.constexpr, BEFORE: tl.constexpr, SILU: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Norm one part of a token's result, before its gate or behind it, and store it."""
    total_C = tl.zeros((BLOCK_C,), tl.float32)
    for first in range(0, PART, BLOCK_C):
        at_C = first + tl.arange(0, BLOCK_C)
        y_C = gated(at_C, at_C < PART, y_ptr, z_ptr, BEFORE, SILU)
        total_C += y_C * y_C
    scale = tl.rsqrt(tl.sum(total_C, 0) / PART + EPS)
    for first in range(0, PART, BLOCK_C):
        at_C = first + tl.arange(0, BLOCK_C)
        there_C = at_C < PART
        weight_C = tl.load(weight_ptr + at_C, mask=there_C, other=0.0).to(tl.float32)
        y_C = gated(at_C, there_C, y_ptr, z_ptr, BEFORE, SILU) * scale * weight_C
        if BEFORE:
            store_gated(out_ptr + at_C, z_ptr + at_C, y_C, there_C, SILU)
        else:
            tl.store(out_ptr + at_C, y_C.to(out_ptr.dtype.element_ty), mask=there_C)


@triton.jit
def deliver(
    out_ptr, y_ptr, gates_ptr, norm_ptr, counter_ptr, y_P, at_P, there_P, part,
    PART: tl.constexpr, PROGRAMS: tl.constexpr, NORM: tl.constexpr, BEFORE: tl.constexpr,
    SILU: tl.constexpr, EPS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gate and store some channels of a token, whose part the last of PROGRAMS to end norms."""
    if NORM:
        tl.store(y_ptr + at_P, y_P, mask=there_P)
        tl.debug_barrier()
        if tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") == PROGRAMS - 1:
            tl.store(counter_ptr, 0)
            at = part * PART
            norm_part(
                out_ptr + at, y_ptr + at, gates_ptr + at, norm_ptr + at,
                PART, EPS, BEFORE, SILU, BLOCK_C,
            )  # fmt: skip
    else:
        store_gated(out_ptr + at_P, gates_ptr + at_P, y_P, there_P, SILU)


@triton.jit
def scan_step(
    out_ptr, y_ptr, mixed_ptr, gates_ptr, cache_ptr, rate_ptr, passed_ptr, bias_ptr, norm_ptr,
    table_ptr, starts_ptr, lens_ptr, counter_ptr, gates_stride, block_stride, table_stride,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, P: tl.constexpr, N: tl.constexpr, DT: tl.constexpr,
    LEAST: tl.constexpr, MOST: tl.constexpr, BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr,
    NORM: tl.constexpr, BEFORE: tl.constexpr, SILU: tl.constexpr, EPS: tl.constexpr,
    PART: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Take the token of each sequence that has one. Grid: (rows, HEADS, P / BLOCK_P).

    Args:
        y_ptr: [tokens, HEADS * P] float32, scratch where there is a norm.
        mixed_ptr: [tokens, HEADS * P + 2 * GROUPS * N] float32: x, B, C.
        gates_ptr: Rows of a token: the gate first, the step of time of each head at DT.
        counter_ptr: [rows, HEADS * P / PART] int32, zero before and after.
    """
    PARTS: tl.constexpr = HEADS * P // PART
    PROGRAMS: tl.constexpr = PART // P * ((P + BLOCK_P - 1) // BLOCK_P)
    row, head = tl.program_id(0), tl.program_id(1)
    channel_P, entry_N = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N)
    there_P, there_N = channel_P < P, entry_N < N
    rate, passed = tl.load(rate_ptr + head), tl.load(passed_ptr + head)
    bias, group = tl.load(bias_ptr + head), head // (HEADS // GROUPS)
    wait(CHAINED)
    begin, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    if end - begin != 1:
        return
    length, token = tl.load(lens_ptr + row), begin.to(tl.int64)
    table_ptr += row.to(tl.int64) * table_stride
    cache_ptr += (head * P + channel_P)[:, None] * N + entry_N[None, :]
    there_PN = there_P[:, None] & there_N[None, :]
    read = block_of(table_ptr, length - 1, BLOCK_SIZE, SINGLE) * block_stride
    state_PN = tl.load(cache_ptr + read, mask=there_PN & (length > 1), other=0.0).to(tl.float32)
    mixed_ptr += token * (HEADS * P + 2 * GROUPS * N)
    gates_ptr += token * gates_stride
    at_P = head * P + channel_P
    x_P = tl.load(mixed_ptr + at_P, mask=there_P, other=0.0)
    mixed_ptr += HEADS * P + group * N
    b_N = tl.load(mixed_ptr + entry_N, mask=there_N, other=0.0)
    c_N = tl.load(mixed_ptr + GROUPS * N + entry_N, mask=there_N, other=0.0)
    dt = time_step(tl.load(gates_ptr + DT + head), bias, LEAST, MOST)
    state_PN = state_PN * tl.exp(dt * rate) + (dt * x_P)[:, None] * b_N[None, :]
    kept = block_of(table_ptr, length, BLOCK_SIZE, SINGLE) * block_stride
    tl.store(cache_ptr + kept, state_PN.to(cache_ptr.dtype.element_ty), mask=there_PN)
    y_P = tl.sum(state_PN * c_N[None, :], 1) + passed * x_P
    part, place = head * P // PART, token * (HEADS * P)
    deliver(
        out_ptr + place, y_ptr + place, gates_ptr, norm_ptr, counter_ptr + row * PARTS + part,
        y_P, at_P, there_P, part, PART, PROGRAMS, NORM, BEFORE, SILU, EPS, BLOCK_C,
    )  # fmt: skip


@triton.jit
def norm_tokens(
    out_ptr, y_ptr, gates_ptr, norm_ptr, gates_stride,
    SIZE: tl.constexpr, PART: tl.constexpr, EPS: tl.constexpr, BEFORE: tl.constexpr,
    SILU: tl.constexpr, BLOCK_C: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Norm and gate what `scan_chunks` left. Grid: (tokens, SIZE / PART)."""
    wait(CHAINED)
    token, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * PART
    gates_ptr += token * gates_stride + at
    place = token * SIZE + at
    norm_part(
        out_ptr + place, y_ptr + place, gates_ptr, norm_ptr + at, PART, EPS, BEFORE, SILU, BLOCK_C
    )


@triton.jit
def take_chunk(
    state_PN, x_PL, factors_LN, apart, there_LN, dt_L, rate,
    APART: tl.constexpr, PARTS: tl.constexpr, STATE_PARTS: tl.constexpr,
):  # fmt: skip
    """Return a chunk's results [P, L] and the state behind it; where dt is 0 nothing changes.

    The logarithm of what is left of one token at another is a difference of running sums. These are
    kept in two parts, of which the coarse one is exact: one sum would lose the small differences
    behind a token that leaves nothing of earlier ones.
    """
    LENGTH: tl.constexpr = dt_L.shape[0]
    b_LN, low_b_LN = load_split(factors_LN, apart, there_LN, STATE_PARTS)
    c_LN, low_c_LN = load_split(factors_LN + APART, apart, there_LN, PARTS)
    power_L = tl.maximum(dt_L * rate, FADED)
    coarse_L = tl.floor(power_L * FINE) / FINE
    rest_L = power_L - coarse_L
    total, total_rest = tl.sum(coarse_L, 0), tl.sum(rest_L, 0)
    coarse_L, rest_L = tl.cumsum(coarse_L, 0), tl.cumsum(rest_L, 0)
    between_LL = coarse_L[:, None] - coarse_L[None, :] + (rest_L[:, None] - rest_L[None, :])
    causal_LL = tl.arange(0, LENGTH)[:, None] >= tl.arange(0, LENGTH)[None, :]
    decay_LL = tl.exp(tl.where(causal_LL, between_LL, float("-inf")))
    nothing_LL = tl.zeros((LENGTH, LENGTH), tl.float32)
    scores_LL = add_product(c_LN, low_c_LN, tl.trans(b_LN), tl.trans(low_b_LN), nothing_LL, PARTS)
    scores_LL *= decay_LL * dt_L[None, :]
    high_PN, low_PN = split(state_PN, PARTS)
    nothing_PL = tl.zeros(x_PL.shape, tl.float32)
    y_PL = add_product(high_PN, low_PN, tl.trans(c_LN), tl.trans(low_c_LN), nothing_PL, PARTS)
    y_PL = product(x_PL, tl.trans(scores_LL), y_PL * tl.exp(coarse_L + rest_L)[None, :], PARTS)
    left_L = tl.exp(total - coarse_L + (total_rest - rest_L)) * dt_L
    state_PN *= tl.exp(total + total_rest)
    high_PL, low_PL = split(x_PL * left_L[None, :], STATE_PARTS)
    return y_PL, add_product(high_PL, low_PL, b_LN, low_b_LN, state_PN, STATE_PARTS)


@triton.jit(do_not_specialize=["tokens"])
def scan_chunks(
    out_ptr, y_ptr, mixed_ptr, factors_ptr, gates_ptr, cache_ptr, rate_ptr, passed_ptr, bias_ptr,
    table_ptr, starts_ptr, lens_ptr, tokens, gates_stride, block_stride, table_stride,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, P: tl.constexpr, N: tl.constexpr, DT: tl.constexpr,
    LEAST: tl.constexpr, MOST: tl.constexpr, BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr,
    ALL: tl.constexpr, NORM: tl.constexpr, SILU: tl.constexpr, PARTS: tl.constexpr,
    STATE_PARTS: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Take all tokens of sequences with several. Operands and grid are as for `scan_step`, but B
    and C lie in factors_ptr: [1 or 2, tokens, 2 * GROUPS * N], parts of a number first.

    Positions are cut into spans, and these into chunks: with ALL a state is kept behind each span.
    States are float32 whatever the model's type is, so their products get more PARTS than others.
    """
    SPAN: tl.constexpr = BLOCK_SIZE if ALL else BLOCK_L
    row, head = tl.program_id(0), tl.program_id(1)
    channel_P, entry_N = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N)
    there_P, there_N = channel_P < P, entry_N < N
    rate, passed = tl.load(rate_ptr + head), tl.load(passed_ptr + head)
    bias, group = tl.load(bias_ptr + head), head // (HEADS // GROUPS)
    wait(CHAINED)
    begin, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    if end - begin <= 1:
        return
    length = tl.load(lens_ptr + row)
    before = length - (end - begin)
    table_ptr += row.to(tl.int64) * table_stride
    cache_ptr += (head * P + channel_P)[:, None] * N + entry_N[None, :]
    there_PN = there_P[:, None] & there_N[None, :]
    read = block_of(table_ptr, before, BLOCK_SIZE, SINGLE) * block_stride
    state_PN = tl.load(cache_ptr + read, mask=there_PN & (before > 0), other=0.0).to(tl.float32)
    at_P, apart = head * P + channel_P, tokens.to(tl.int64) * (2 * GROUPS * N)
    last = chunk_at(length - 1, SPAN, BLOCK_L)
    for chunk in range(chunk_at(before, SPAN, BLOCK_L), last + 1):
        token_L, there_L, high = tokens_of(chunk, begin, before, length, SPAN, BLOCK_L)
        there_PL = there_P[:, None] & there_L[None, :]
        there_LN = there_L[:, None] & there_N[None, :]
        mixed_L = mixed_ptr + token_L * (HEADS * P + 2 * GROUPS * N)
        x_PL = tl.load(mixed_L[None, :] + at_P[:, None], mask=there_PL, other=0.0)
        at_LN = factors_ptr + token_L[:, None] * (2 * GROUPS * N) + (group * N + entry_N)[None, :]
        raw_L = tl.load(gates_ptr + token_L * gates_stride + DT + head, mask=there_L, other=0.0)
        dt_L = tl.where(there_L, time_step(raw_L, bias, LEAST, MOST), 0.0)
        y_PL, state_PN = take_chunk(
            state_PN, x_PL, at_LN, apart, there_LN, dt_L, rate, GROUPS * N, PARTS, STATE_PARTS
        )
        y_PL += passed * x_PL
        place_PL = token_L[None, :] * (HEADS * P) + at_P[:, None]
        if NORM:
            tl.store(y_ptr + place_PL, y_PL, mask=there_PL)
        else:
            gate_PL = gates_ptr + token_L[None, :] * gates_stride + at_P[:, None]
            store_gated(out_ptr + place_PL, gate_PL, y_PL, there_PL, SILU)
        if ALL:
            whole = (high % BLOCK_SIZE == 0) & (high < length)
            if whole:
                keep_state(
                    cache_ptr, table_ptr, high, state_PN, there_PN, block_stride, BLOCK_SIZE, SINGLE
                )
    keep_state(cache_ptr, table_ptr, length, state_PN, there_PN, block_stride, BLOCK_SIZE, SINGLE)
