"""A gated linear recurrence behind its convolution and its gates' products.

A program goes through a sequence in tiles of tokens, for some channels. A tile is a prefix scan, in
which stretches of tokens are joined: of one that decays by a and adds u, and one behind it, the
decay is a product, and what both add is u times the second decay, plus what the second adds.

Source: De et al. 2024, arXiv:2402.19427, section 2.4.
Shape suffixes: T tokens, C channels.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import activate, exp, sigmoid
from hotshoe_triton.kernels.states import block_of, keep_state

#: From here on a series is exact where 1 - exp(x) would lose bits.
SMALL = tl.constexpr(-0.125)


@triton.jit
def lost(x):
    """Return 1 - exp(x) of x <= 0, without cancellation."""
    series = -x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))))
    return tl.where(x > SMALL, series, 1 - exp(x))


@triton.jit
def join(decay, added, further_decay, further_added):
    """Return what two stretches of tokens do, the second behind the first."""
    return decay * further_decay, added * further_decay + further_added


@triton.jit
def tile(
    mixed_ptr, made_ptr, bias_ptr, rate_C, first, place_T, there_TC, tokens, channel_C,
    INNER: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Return decays of tokens, and what they add. A token that is not there changes nothing."""
    token_T = first + place_T
    x_TC = tl.load(
        mixed_ptr + token_T[:, None] * INNER + channel_C[None, :], mask=there_TC, other=0.0
    )
    row_TC = (channel_C // HEAD).to(tl.int64)[None, :] * tokens + token_T[:, None]
    at_TC = row_TC * (2 * HEAD) + (channel_C % HEAD)[None, :]
    there_C = channel_C < INNER
    opening_TC = tl.load(made_ptr + at_TC, mask=there_TC, other=0.0)
    opening_TC += tl.load(bias_ptr + channel_C, mask=there_C, other=0.0)[None, :]
    decay_TC = tl.load(made_ptr + at_TC + HEAD, mask=there_TC, other=0.0)
    decay_TC += tl.load(bias_ptr + INNER + channel_C, mask=there_C, other=0.0)[None, :]
    logs_TC = rate_C[None, :] * sigmoid(decay_TC)
    scale_TC = tl.where((place_T == 0)[:, None], 1.0, tl.sqrt(lost(2 * logs_TC)))
    added_TC = scale_TC * sigmoid(opening_TC) * x_TC
    return tl.where(there_TC, exp(logs_TC), 1.0), tl.where(there_TC, added_TC, 0.0)


@triton.jit(do_not_specialize=["tokens"])
def recur(
    out_ptr, mixed_ptr, made_ptr, behind_ptr, cache_ptr, bias_ptr, rate_ptr,
    table_ptr, starts_ptr, lens_ptr, tokens, behind_stride, block_stride, table_stride,
    INNER: tl.constexpr, HEAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, SINGLE: tl.constexpr,
    ALL: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Take all tokens of each sequence. Grid: (rows, INNER / BLOCK_C).

    Positions are cut into tiles of BLOCK_T tokens, which divides BLOCK_SIZE with ALL.

    Args:
        mixed_ptr: [tokens, INNER] float32, what the convolution put out.
        made_ptr: [heads, tokens, 2 * HEAD] float32, gates of the input and of the decay before
            their bias [2, INNER].
        behind_ptr: Rows of the gate behind.
    """
    row, channel_C = tl.program_id(0), tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    there_C, at_T = channel_C < INNER, tl.arange(0, BLOCK_T)
    rate_C = tl.load(rate_ptr + channel_C, mask=there_C, other=0.0)
    wait(CHAINED)
    begin, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    if begin >= end:
        return
    length = tl.load(lens_ptr + row)
    before = length - (end - begin)
    cache_ptr, table_ptr = cache_ptr + channel_C, table_ptr + row.to(tl.int64) * table_stride
    read = block_of(table_ptr, before, BLOCK_SIZE, SINGLE) * block_stride
    state_C = tl.load(cache_ptr + read, mask=there_C & (before > 0), other=0.0).to(tl.float32)
    first = begin.to(tl.int64) - before
    for group in range(before // BLOCK_T, (length - 1) // BLOCK_T + 1):
        place_T = group * BLOCK_T + at_T
        there_T = (place_T >= before) & (place_T < length)
        there_TC = there_T[:, None] & there_C[None, :]
        decay_TC, added_TC = tile(
            mixed_ptr, made_ptr, bias_ptr, rate_C, first, place_T, there_TC, tokens, channel_C,
            INNER, HEAD,
        )  # fmt: skip
        if BLOCK_T > 1:
            decay_TC, added_TC = tl.associative_scan((decay_TC, added_TC), 0, join)
        state_TC = decay_TC * state_C[None, :] + added_TC
        state_C = tl.sum(tl.where((at_T == BLOCK_T - 1)[:, None], state_TC, 0.0), 0)
        token_TC = (first + place_T)[:, None]
        behind_TC = tl.load(
            behind_ptr + token_TC * behind_stride + channel_C[None, :], mask=there_TC, other=0.0
        )
        out_TC = state_TC * activate(behind_TC.to(tl.float32), "gelu_tanh")
        tl.store(
            out_ptr + token_TC * INNER + channel_C[None, :],
            out_TC.to(out_ptr.dtype.element_ty),
            mask=there_TC,
        )
        if ALL:
            done = (group + 1) * BLOCK_T
            if (done % BLOCK_SIZE == 0) & (done < length):
                keep_state(
                    cache_ptr, table_ptr, done, state_C, there_C, block_stride, BLOCK_SIZE, SINGLE
                )
    keep_state(cache_ptr, table_ptr, length, state_C, there_C, block_stride, BLOCK_SIZE, SINGLE)
