"""Mamba-1 behind its convolution: two small products, and the scan over states with its gate.

The products make the steps of time, B and C of what the convolution puts out. A program of the scan
holds the states of some channels in registers, from the first token of its sequence to the last:
each entry has a decay of its own, so that no product of matrices takes the place of the recurrence.
It takes several tokens in a row: their operands are on the way together, and of all that a token
needs only one addition waits for the token before it.

Source: Gu and Dao 2023, arXiv:2312.00752, section 3.
Shape suffixes: T tokens, C columns of a product, K numbers that are summed, P channels, N entries
of a channel's state.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import sigmoid
from hotshoe_triton.kernels.states import block_of, keep_state, softplus, split

#: exp(x) is a power of two of so many times x.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def multiply(
    out_ptr, x_ptr, weight_ptr, tokens, x_stride,
    COLUMNS: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr,
    WEIGHT_PARTS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Multiply rows [tokens, SIZE] float32 by a weight [COLUMNS, SIZE], transposed.

    Grid: (tokens / BLOCK_T, COLUMNS / BLOCK_C, SPLITS). Each split sums a share of SIZE.

    Args:
        out_ptr: [SPLITS, tokens, COLUMNS] float32.
        PARTS, WEIGHT_PARTS: Numbers of bfloat16 that stand for one of either; 0 for float32.
    """
    SHARE: tl.constexpr = (SIZE + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K) * BLOCK_K
    at_T = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    at_C, share = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C), tl.program_id(2)
    there_T, there_C = at_T < tokens, at_C < COLUMNS
    x_T = x_ptr + at_T.to(tl.int64) * x_stride
    sums_TC = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    wait(CHAINED)
    for first in range(share * SHARE, tl.minimum((share + 1) * SHARE, SIZE), BLOCK_K):
        at_K = first + tl.arange(0, BLOCK_K)
        there_K = at_K < SIZE
        x_TK = tl.load(
            x_T[:, None] + at_K[None, :], mask=there_T[:, None] & there_K[None, :], other=0.0
        )
        weight_KC = tl.load(
            weight_ptr + at_C[None, :] * SIZE + at_K[:, None],
            mask=there_C[None, :] & there_K[:, None],
            other=0.0,
        )
        x_high, x_low = split(x_TK, PARTS)
        weight_high, weight_low = split(weight_KC.to(tl.float32), PARTS)
        if PARTS == 0:
            sums_TC = tl.dot(x_high, weight_high, sums_TC, input_precision="ieee")
        else:
            sums_TC = tl.dot(x_low, weight_high, sums_TC)
            if WEIGHT_PARTS == 2:
                sums_TC = tl.dot(x_high, weight_low, sums_TC)
            sums_TC = tl.dot(x_high, weight_high, sums_TC)
    out_ptr += (share * tokens + at_T.to(tl.int64))[:, None] * COLUMNS + at_C[None, :]
    tl.store(out_ptr, sums_TC, mask=there_T[:, None] & there_C[None, :])


@triton.jit
def norm_section(
    out_ptr, parts_ptr, weight_ptr, apart, FIRST: tl.constexpr, SIZE: tl.constexpr,
    SPLITS: tl.constexpr, NORM: tl.constexpr, WEIGHTED: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Sum what the splits of a token's columns are, and norm them."""
    BLOCK_C: tl.constexpr = triton.next_power_of_2(SIZE)
    at_C = FIRST + tl.arange(0, BLOCK_C)
    there_C = at_C < FIRST + SIZE
    made_C = tl.zeros((BLOCK_C,), tl.float32)
    for share in tl.static_range(SPLITS):
        made_C += tl.load(parts_ptr + share * apart + at_C, mask=there_C, other=0.0)
    if NORM:
        made_C *= tl.rsqrt(tl.sum(made_C * made_C, 0) / SIZE + EPS)
    if WEIGHTED:
        made_C *= tl.load(weight_ptr + at_C, mask=there_C, other=0.0).to(tl.float32)
    tl.store(out_ptr + at_C, made_C, mask=there_C)


@triton.jit
def norm_made(
    out_ptr, parts_ptr, weight_ptr, tokens,
    RANK: tl.constexpr, N: tl.constexpr, SPLITS: tl.constexpr, NORM: tl.constexpr,
    WEIGHTED: tl.constexpr, EPS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Sum splits of a product, and norm its three sections, each on its own. Grid: (tokens,)."""
    COLUMNS: tl.constexpr = RANK + 2 * N
    wait(CHAINED)
    at, apart = tl.program_id(0).to(tl.int64) * COLUMNS, tokens * COLUMNS
    out_ptr, parts_ptr = out_ptr + at, parts_ptr + at
    norm_section(out_ptr, parts_ptr, weight_ptr, apart, 0, RANK, SPLITS, NORM, WEIGHTED, EPS)
    norm_section(out_ptr, parts_ptr, weight_ptr, apart, RANK, N, SPLITS, NORM, WEIGHTED, EPS)
    norm_section(out_ptr, parts_ptr, weight_ptr, apart, RANK + N, N, SPLITS, NORM, WEIGHTED, EPS)


@triton.jit
def operands(
    mixed_ptr, gates_ptr, time_ptr, made_ptr, bias_P, there, there_P, there_N,
    token, channel_P, entry_N, gates_stride,
    INNER: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Load a token's x, step of time and gate [P], and its B and C [N]. No token has no step."""
    there_P, there_N = there_P & there, there_N & there
    at_P, at_N = token * INNER + channel_P, token * (RANK + 2 * N) + RANK + entry_N
    x_P = tl.load(mixed_ptr + at_P, mask=there_P, other=0.0)
    raw_P = tl.load(time_ptr + at_P, mask=there_P, other=0.0)
    gate_P = tl.load(gates_ptr + token * gates_stride + channel_P, mask=there_P, other=0.0)
    b_N = tl.load(made_ptr + at_N, mask=there_N, other=0.0)
    c_N = tl.load(made_ptr + at_N + N, mask=there_N, other=0.0)
    return x_P, tl.where(there, softplus(raw_P + bias_P), 0.0), gate_P.to(tl.float32), b_N, c_N


@triton.jit
def take(state_PN, rate_PN, passed_P, token):
    """Return the state behind a token, of which these are the operands, and its gated result."""
    x_P, dt_P, gate_P, b_N, c_N = token
    added_PN = (dt_P * x_P)[:, None] * b_N[None, :]
    state_PN = state_PN * tl.exp2(dt_P[:, None] * rate_PN) + added_PN
    y_P = tl.sum(state_PN * c_N[None, :], 1) + passed_P * x_P
    return state_PN, y_P * gate_P * sigmoid(gate_P)


@triton.jit
def scan(
    out_ptr, mixed_ptr, gates_ptr, time_ptr, made_ptr, cache_ptr, rate_ptr, passed_ptr, bias_ptr,
    table_ptr, starts_ptr, lens_ptr, gates_stride, block_stride, table_stride,
    INNER: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SINGLE: tl.constexpr, ALL: tl.constexpr, TOGETHER: tl.constexpr, AHEAD: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Take all tokens of each sequence. Grid: (rows, INNER / BLOCK_P).

    Positions are cut into groups of TOGETHER, which divides BLOCK_SIZE with ALL.

    Args:
        mixed_ptr: [tokens, INNER] float32, what the convolution put out; gates_ptr: rows of gates.
        time_ptr: [tokens, INNER] float32, steps of time before their bias.
        made_ptr: [tokens, RANK + 2 * N] float32; B and C are the last columns.
        AHEAD: Groups that are loaded at once.
    """
    row, entry_N = tl.program_id(0), tl.arange(0, BLOCK_N)
    channel_P = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    there_P, there_N = channel_P < INNER, entry_N < N
    there_PN = there_P[:, None] & there_N[None, :]
    at_PN = channel_P[:, None] * N + entry_N[None, :]
    rate_PN = tl.load(rate_ptr + at_PN, mask=there_PN, other=0.0) * LOG2_E
    passed_P = tl.load(passed_ptr + channel_P, mask=there_P, other=0.0)
    bias_P = tl.load(bias_ptr + channel_P, mask=there_P, other=0.0)
    wait(CHAINED)
    begin, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    if begin >= end:
        return
    length = tl.load(lens_ptr + row)
    before = length - (end - begin)
    cache_ptr, table_ptr = cache_ptr + at_PN, table_ptr + row.to(tl.int64) * table_stride
    read = block_of(table_ptr, before, BLOCK_SIZE, SINGLE) * block_stride
    state_PN = tl.load(cache_ptr + read, mask=there_PN & (before > 0), other=0.0).to(tl.float32)
    first = begin.to(tl.int64) - before
    for group in tl.range(before // TOGETHER, (length - 1) // TOGETHER + 1, num_stages=AHEAD):
        found = ()
        for i in tl.static_range(TOGETHER):
            place = group * TOGETHER + i
            there = (place >= before) & (place < length)
            found += (operands(
                mixed_ptr, gates_ptr, time_ptr, made_ptr, bias_P, there, there_P, there_N,
                first + place, channel_P, entry_N, gates_stride, INNER, RANK, N,
            ),)  # fmt: skip
        results = ()
        for i in tl.static_range(TOGETHER):
            state_PN, y_P = take(state_PN, rate_PN, passed_P, found[i])
            results += (y_P,)
        for i in tl.static_range(TOGETHER):
            place = group * TOGETHER + i
            at_P = (first + place) * INNER + channel_P
            there = there_P & (place >= before) & (place < length)
            tl.store(out_ptr + at_P, results[i].to(out_ptr.dtype.element_ty), mask=there)
        if ALL:
            done = (group + 1) * TOGETHER
            if (done % BLOCK_SIZE == 0) & (done < length):
                keep_state(
                    cache_ptr, table_ptr, done, state_PN, there_PN, block_stride, BLOCK_SIZE, SINGLE
                )
    keep_state(cache_ptr, table_ptr, length, state_PN, there_PN, block_stride, BLOCK_SIZE, SINGLE)
