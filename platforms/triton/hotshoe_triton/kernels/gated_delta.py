"""The gated delta rule, token by token: a program holds one head's state of one sequence."""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import sigmoid
from hotshoe_triton.kernels.states import column_of, softplus

#: Joins the squared length of q and of k.
LENGTH_EPS = tl.constexpr(1e-6)


@triton.jit
def direction(at, there):
    """Load a vector and bring it to length 1."""
    x = tl.load(at, mask=there, other=0.0)
    return x * tl.rsqrt(tl.sum(x * x, 0) + LENGTH_EPS)


@triton.jit
def log_decay(x, rate, FLOOR: tl.constexpr):
    """Return logarithms of decays, at least FLOOR; 0 is no floor."""
    return FLOOR * sigmoid(-rate * x) if FLOOR < 0 else rate * softplus(x)


@triton.jit
def faded(
    state, gates, dt_bias, rate, head, k_at, K: tl.constexpr, CHANNELS: tl.constexpr,
    FLOOR: tl.constexpr,
):  # fmt: skip
    """Let a head's state decay, each channel of keys by its own factor or all by the same."""
    if CHANNELS:
        there = k_at < K
        x = tl.load(gates + head * K + k_at, mask=there, other=0.0).to(tl.float32)
        x += tl.load(dt_bias + head * K + k_at, mask=there, other=0.0)
        state *= tl.exp(log_decay(x, rate, FLOOR))[None, :]
    else:
        x = tl.load(gates + head).to(tl.float32) + tl.load(dt_bias + head)
        state *= tl.exp(log_decay(x, rate, FLOOR))
    return state


@triton.jit
def gated(y, weight, z, V: tl.constexpr, EPS: tl.constexpr, SILU: tl.constexpr):
    """Norm a head's result and gate it."""
    gate = sigmoid(z)
    if SILU:
        gate *= z
    return y * tl.rsqrt(tl.sum(y * y, 0) / V + EPS) * weight * gate


@triton.jit
def gated_delta(
    out,  # [tokens, HEADS * V]
    mixed,  # [tokens, 2 * KEY_HEADS * K + HEADS * V] float32: q, k, v
    gates,  # [tokens, HEADS * V + HEADS + decays], rows apart: z, beta, decays
    cache,  # [blocks, HEADS, V, K]
    rates,  # [HEADS] float32
    dt_bias,  # [decays] float32
    norm,  # [V]
    table,  # [rows, columns] int32
    starts,  # [rows + 1] int32
    lens,  # [rows] int32
    stride_gates,
    stride_block,
    stride_table,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    CHANNELS: tl.constexpr, SILU: tl.constexpr, EPS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SINGLE: tl.constexpr, ALL: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    FEW: tl.constexpr, BETA: tl.constexpr, FLOOR: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Take the tokens of sequences with few of them, norm and gate each result, keep the state."""
    row, head = tl.program_id(0), tl.program_id(1)
    k_at, v_at = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    k_there, v_there = k_at < K, v_at < V
    tile, there = v_at[:, None] * K + k_at[None, :], v_there[:, None] & k_there[None, :]
    rate, states = tl.load(rates + head), cache + head * V * K + tile
    weight = tl.load(norm + v_at, mask=v_there, other=0.0).to(tl.float32)
    columns = table + row.to(tl.int64) * stride_table
    wait(CHAINED)
    begin, end, length = tl.load(starts + row), tl.load(starts + row + 1), tl.load(lens + row)
    if end - begin > FEW:
        return
    before = length - (end - begin)
    read = tl.load(columns + column_of(before, BLOCK_SIZE, SINGLE), mask=before > 0, other=0)
    known = there & (before > 0)
    state = tl.load(states + read.to(tl.int64) * stride_block, mask=known, other=0.0)
    state = state.to(tl.float32)
    for i in range(end - begin):
        token = (begin + i).to(tl.int64)
        source = mixed + token * (2 * KEY_HEADS * K + HEADS * V)
        side, keys = gates + token * stride_gates, source + head // (HEADS // KEY_HEADS) * K
        q, k = direction(keys + k_at, k_there), direction(keys + KEY_HEADS * K + k_at, k_there)
        v = tl.load(source + 2 * KEY_HEADS * K + head * V + v_at, mask=v_there, other=0.0)
        z = tl.load(side + head * V + v_at, mask=v_there, other=0.0).to(tl.float32)
        beta = BETA * sigmoid(tl.load(side + HEADS * V + head).to(tl.float32))
        decays = side + HEADS * V + HEADS
        state = faded(state, decays, dt_bias, rate, head, k_at, K, CHANNELS, FLOOR)
        state += (beta * (v - tl.sum(state * k[None, :], 1)))[:, None] * k[None, :]
        y = gated(tl.sum(state * q[None, :], 1) * (K**-0.5), weight, z, V, EPS, SILU)
        place = out + token * (HEADS * V) + head * V + v_at
        tl.store(place, y.to(out.dtype.element_ty), mask=v_there)
        if ALL:
            done = before + i + 1
            if (done % BLOCK_SIZE == 0) & (done < length):
                kept = tl.load(columns + (done - 1) // BLOCK_SIZE).to(tl.int64)
                held = state.to(cache.dtype.element_ty)
                tl.store(states + kept * stride_block, held, mask=there)
    if end > begin:
        kept = tl.load(columns + column_of(length, BLOCK_SIZE, SINGLE)).to(tl.int64)
        tl.store(states + kept * stride_block, state.to(cache.dtype.element_ty), mask=there)
