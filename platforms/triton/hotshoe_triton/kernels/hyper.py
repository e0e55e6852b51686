"""Residual streams behind a block, the logits that they give, and what the next block takes.

Two launches: logits are sums over all streams of a token, and everything else needs them. Shape
suffixes: T tokens, H channels of a stream, O logits, S parts, C streams, X pairs of streams.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.elementwise import sigmoid


@triton.jit
def multiplied(x_TH, fn_OH, sums_TO):
    """Add a product with float32, exact to its last bit: three numbers of 8 bits make one of 24."""
    for _ in tl.static_range(3):
        part_OH = fn_OH.to(tl.bfloat16)
        sums_TO = tl.dot(x_TH, tl.trans(part_OH), sums_TO)
        fn_OH -= part_OH.to(tl.float32)
    return sums_TO


@triton.jit(do_not_specialize=["tokens"])
def join_and_project(
    next_ptr, partial_ptr, streams_ptr, out_ptr, gates_ptr, fn_ptr, tokens, per, token_stride,
    stream_stride, out_stride, COUNT: tl.constexpr, HIDDEN: tl.constexpr, OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr, JOINED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (tiles of tokens, splits of channels, COUNT). A program makes one stream.

    Args:
        next_ptr: [tokens, COUNT, HIDDEN], written where a block is JOINED.
        partial_ptr: [splits * COUNT, tokens, WIDTH] float32: each program's part of logits, and of
            the sum of squares behind them.
        per: Channels of a split, a multiple of BLOCK_H.
    """
    wait(CHAINED)
    split, j = tl.program_id(1), tl.program_id(2)
    token_T, output_O = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T), tl.arange(0, WIDTH)
    there_T, at_T = token_T < tokens, token_T.to(tl.int64)
    gate_ptrs = gates_ptr + at_T * (COUNT * (1 + COUNT))
    sums_TO = tl.zeros((BLOCK_T, WIDTH), tl.float32)
    square_T = tl.zeros((BLOCK_T,), tl.float32)
    for first in range(split * per, tl.minimum(split * per + per, HIDDEN), BLOCK_H):
        channel_H = first + tl.arange(0, BLOCK_H)
        own_H = channel_H < HIDDEN
        there_TH = there_T[:, None] & own_H[None, :]
        own_ptrs = streams_ptr + (at_T * token_stride)[:, None] + channel_H[None, :]
        if JOINED:
            out_ptrs = out_ptr + (at_T * out_stride)[:, None] + channel_H[None, :]
            x_TH = tl.load(out_ptrs, mask=there_TH, other=0.0).to(tl.float32)
            x_TH *= tl.load(gate_ptrs + j, mask=there_T, other=0.0)[:, None]
            for i in tl.static_range(COUNT):
                share_T = tl.load(gate_ptrs + COUNT + i * COUNT + j, mask=there_T, other=0.0)
                stream_TH = tl.load(own_ptrs + i * stream_stride, mask=there_TH, other=0.0)
                x_TH += share_T[:, None] * stream_TH.to(tl.float32)
            place_TH = (at_T * COUNT + j)[:, None] * HIDDEN + channel_H[None, :]
            next_TH = x_TH.to(next_ptr.dtype.element_ty)
            tl.store(next_ptr + place_TH, next_TH, mask=there_TH)
        else:
            next_TH = tl.load(own_ptrs + j * stream_stride, mask=there_TH, other=0.0)
        x_TH = next_TH.to(tl.float32)
        square_T += tl.sum(x_TH * x_TH, 1)
        fn_OH = tl.load(
            fn_ptr + (output_O * COUNT + j)[:, None] * HIDDEN + channel_H[None, :],
            mask=(output_O < OUTPUTS)[:, None] & own_H[None, :],
            other=0.0,
        )
        if next_TH.dtype == tl.bfloat16:
            sums_TO = multiplied(next_TH, fn_OH, sums_TO)
        else:
            sums_TO = tl.dot(x_TH, tl.trans(fn_OH), sums_TO, input_precision=PRECISION)
    sums_TO = tl.where((output_O == OUTPUTS)[None, :], square_T[:, None], sums_TO)
    part_TO = ((split * COUNT + j) * tokens + at_T)[:, None] * WIDTH + output_O[None, :]
    tl.store(partial_ptr + part_TO, sums_TO, mask=there_T[:, None])


@triton.jit
def added(partial_ptr, at_X, there_X, parts, part_stride, BLOCK_S: tl.constexpr):
    """Add up the parts of some sums of a token."""
    total_X = tl.zeros(at_X.shape, tl.float32)
    for first in range(0, parts, BLOCK_S):
        part_S = first + tl.arange(0, BLOCK_S)
        there_SX = (part_S < parts)[:, None] & there_X[None, :]
        ptrs_SX = partial_ptr + (part_S * part_stride)[:, None] + at_X[None, :]
        total_X += tl.sum(tl.load(ptrs_SX, mask=there_SX, other=0.0), 0)
    return total_X


@triton.jit
def balanced(logit_CC, own_C, EPS: tl.constexpr, ITERATIONS: tl.constexpr):
    """Divide the exponentials of a matrix by sums of rows and columns, in turn."""
    there_CC = own_C[:, None] & own_C[None, :]
    top_C = tl.where(own_C, tl.max(tl.where(there_CC, logit_CC, float("-inf")), 1), 0.0)
    made_CC = tl.where(there_CC, tl.exp(logit_CC - top_C[:, None]), 0.0)
    made_CC /= tl.where(own_C, tl.sum(made_CC, 1), 1.0)[:, None]
    made_CC = tl.where(there_CC, made_CC + EPS, 0.0)
    made_CC /= tl.where(own_C, tl.sum(made_CC, 0) + EPS, 1.0)[None, :]
    for _ in range(ITERATIONS - 1):
        made_CC /= tl.where(own_C, tl.sum(made_CC, 1) + EPS, 1.0)[:, None]
        made_CC /= tl.where(own_C, tl.sum(made_CC, 0) + EPS, 1.0)[None, :]
    return made_CC


@triton.jit(do_not_specialize=["tokens", "parts"])
def gate_and_sum(
    taken_ptr, gates_ptr, partial_ptr, streams_ptr, base_ptr, scale_ptr, tokens, parts,
    token_stride, stream_stride, COUNT: tl.constexpr, HIDDEN: tl.constexpr, OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr, ITERATIONS: tl.constexpr, EPS: tl.constexpr, NORM_EPS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (tokens, blocks of channels, and one that makes gates where there are any)."""
    wait(CHAINED)
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    partial_ptr += token * WIDTH
    part_stride, stream_C = tokens * WIDTH, tl.arange(0, BLOCK_C)
    own_C = stream_C < COUNT
    square = added(partial_ptr + OUTPUTS, stream_C, stream_C == 0, parts, part_stride, BLOCK_S)
    inverse = 1.0 / tl.sqrt(tl.sum(square, 0) / (COUNT * HIDDEN) + NORM_EPS)
    if block * BLOCK_H < HIDDEN:
        logit_C = added(partial_ptr, stream_C, own_C, parts, part_stride, BLOCK_S) * inverse
        base_C = tl.load(base_ptr + stream_C, mask=own_C, other=0.0)
        factor_C = sigmoid(logit_C * tl.load(scale_ptr) + base_C) + EPS
        channel_H = block * BLOCK_H + tl.arange(0, BLOCK_H)
        there_H, taken_H = channel_H < HIDDEN, tl.zeros((BLOCK_H,), tl.float32)
        for i in tl.static_range(COUNT):
            ptrs_H = streams_ptr + token * token_stride + i * stream_stride + channel_H
            stream_H = tl.load(ptrs_H, mask=there_H, other=0.0).to(tl.float32)
            taken_H += tl.sum(tl.where(stream_C == i, factor_C, 0.0), 0) * stream_H
        taken_H = taken_H.to(taken_ptr.dtype.element_ty)
        tl.store(taken_ptr + token * HIDDEN + channel_H, taken_H, mask=there_H)
    else:
        gates_ptr += token * (COUNT * (1 + COUNT))
        logit_C = added(partial_ptr + COUNT, stream_C, own_C, parts, part_stride, BLOCK_S)
        base_C = tl.load(base_ptr + COUNT + stream_C, mask=own_C, other=0.0)
        join_C = 2.0 * sigmoid(logit_C * inverse * tl.load(scale_ptr + 1) + base_C)
        tl.store(gates_ptr + stream_C, join_C, mask=own_C)
        pair_X = tl.arange(0, BLOCK_C * BLOCK_C)
        from_X, to_X = pair_X // BLOCK_C, pair_X % BLOCK_C
        there_X, at_X = (from_X < COUNT) & (to_X < COUNT), from_X * COUNT + to_X
        logit_X = added(partial_ptr + 2 * COUNT, at_X, there_X, parts, part_stride, BLOCK_S)
        base_X = tl.load(base_ptr + 2 * COUNT + at_X, mask=there_X, other=0.0)
        logit_X = logit_X * inverse * tl.load(scale_ptr + 2) + base_X
        mix_CC = balanced(tl.reshape(logit_X, (BLOCK_C, BLOCK_C)), own_C, EPS, ITERATIONS)
        mix_X = tl.reshape(mix_CC, (BLOCK_C * BLOCK_C,))
        tl.store(gates_ptr + COUNT + at_X, mix_X, mask=there_X)
