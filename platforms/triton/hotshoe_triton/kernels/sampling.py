"""Choice of one token per row of logits, without a sort.

`survey` walks the vocabulary in chunks and notes of each: its largest logit and where, whether it
holds NaN, the sum of its weights exp((logit - largest) / temperature), and the largest logit of
each small group. `choose` takes one row per program. Greedy rows and rows without filters need
little more than these notes. Top-k and top-p each become a threshold on the logits: the lowest
value that is kept. It is found by halving, sixteen ways at a time, the interval of integers that
order as the float32 values do: among a shortlist of the largest logits (`shortlist.py`) wherever
that provably holds all that matters, else over the whole row.

Weights are float32, their sums over chunks float64. Shape suffixes: C chunks, V logits of a chunk,
W ways.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.shortlist import (
    LOWEST,
    NONE,
    WAYS,
    base2,
    from_shortlist,
    ordered,
    step_down,
    weight,
)  # isort: skip


@triton.jit
def survey(
    notes_ptr, where_ptr, groups_ptr, logits_ptr, temperature_ptr, logits_stride,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr, GROUP: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (rows, NUM_CHUNKS).

    Args:
        notes_ptr: [rows, NUM_CHUNKS, 2] float32: largest logit (NaN if any is), sum of weights
            relative to it.
        where_ptr: [rows, NUM_CHUNKS] int32: lowest index of the largest logit.
        groups_ptr: [rows, NUM_CHUNKS * CHUNK / GROUP] float32: largest logit of each group.
    """
    wait(CHAINED)
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index_V = chunk * CHUNK + tl.arange(0, CHUNK)
    there_V = index_V < SIZE
    x_V = tl.load(logits_ptr + row * logits_stride + index_V, mask=there_V, other=float("-inf"))
    broken = tl.max((x_V != x_V).to(tl.int32), 0) > 0
    x_V = tl.where(x_V == x_V, x_V, float("-inf"))
    largest = tl.max(x_V, 0)
    first = tl.min(tl.where(x_V == largest, index_V, NONE), 0)
    temperature = tl.load(temperature_ptr + row)
    total = 0.0
    cell = row * NUM_CHUNKS + chunk
    if temperature > 0:
        anchor = tl.where(tl.abs(largest) == float("inf"), 0.0, largest)
        total = tl.sum(weight(x_V, anchor, base2(temperature)), 0)
        groups: tl.constexpr = CHUNK // GROUP
        tops = tl.max(tl.reshape(x_V, [groups, GROUP]), 1)
        tl.store(groups_ptr + cell * groups + tl.arange(0, groups), tops)
    tl.store(notes_ptr + cell * 2, tl.where(broken, float("nan"), largest))
    tl.store(notes_ptr + cell * 2 + 1, total)
    tl.store(where_ptr + cell, first)


@triton.jit
def measure(
    row_ptr, bound_W, lowest, largest, inverse,
    COUNT: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return for each bound how many logits, or which weight, lie at or above it (and lowest)."""
    total_W = tl.zeros([WAYS], tl.float64)
    for first in range(0, SIZE, CHUNK):
        index_V = first + tl.arange(0, CHUNK)
        x_V = tl.load(row_ptr + index_V, mask=index_V < SIZE, other=float("-inf"))
        key_V = ordered(x_V)
        if COUNT:
            value_V = (index_V < SIZE).to(tl.float32)
        else:
            value_V = tl.where(key_V >= lowest, weight(x_V, largest, inverse), 0.0)
        above_WV = key_V[None, :] >= bound_W[:, None]
        total_W += tl.sum(tl.where(above_WV, value_V[None, :], 0.0), 1).to(tl.float64)
    return total_W


@triton.jit
def threshold(
    row_ptr, goal, lowest, largest, inverse,
    COUNT: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return the highest key whose measure reaches the goal; the lowest key if none does.

    The interval [low, low + 16**step) of keys shrinks by one hexadecimal digit in each pass.
    """
    low = tl.full((), LOWEST, tl.int64)
    for digit in range(8):
        width = tl.full((), 1, tl.int64) << (28 - 4 * digit)
        bound_W = (low + tl.arange(0, WAYS) * width).to(tl.int32)
        measure_W = measure(row_ptr, bound_W, lowest, largest, inverse, COUNT, SIZE, CHUNK)
        low = step_down(low, width, measure_W >= goal)
    return low.to(tl.int32)


@triton.jit
def kept_weight(x_V, there_V, lowest, least, largest, inverse):
    """Return the weights of a chunk's logits that pass the threshold and min-p."""
    weight_V = weight(x_V, largest, inverse)
    keep_V = there_V & (ordered(x_V) >= lowest) & (weight_V >= least)
    return tl.where(keep_V, weight_V, 0.0)


@triton.jit
def invert(
    row_ptr, uniform, total, lowest, least, largest, inverse, first_chunk, before,
    SIZE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return the first index whose cumulated weight exceeds uniform * total.

    Chunks before `first_chunk`, of weight `before`, are known not to hold it. Should rounding
    leave none, it is the last index that has weight.
    """
    goal = uniform * total
    found = tl.full((), NONE, tl.int32)
    last = tl.full((), -1, tl.int32)
    chunk = first_chunk
    while (found == NONE) & (chunk * CHUNK < SIZE):
        index_V = chunk * CHUNK + tl.arange(0, CHUNK)
        there_V = index_V < SIZE
        x_V = tl.load(row_ptr + index_V, mask=there_V, other=float("-inf"))
        weight_V = kept_weight(x_V, there_V, lowest, least, largest, inverse)
        sums_V = before + tl.cumsum(weight_V, 0).to(tl.float64)
        hit_V = (sums_V > goal) & (weight_V > 0)
        found = tl.min(tl.where(hit_V, index_V, NONE), 0)
        last = tl.maximum(last, tl.max(tl.where(weight_V > 0, index_V, -1), 0))
        before += tl.sum(weight_V, 0).to(tl.float64)
        chunk += 1
    return tl.where(found == NONE, last, found)


@triton.jit
def kept_total(row_ptr, lowest, least, largest, inverse, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """Return the weight of all logits that pass, summed chunk by chunk as `invert` does."""
    total = tl.zeros((), tl.float64)
    for first in range(0, SIZE, CHUNK):
        index_V = first + tl.arange(0, CHUNK)
        there_V = index_V < SIZE
        x_V = tl.load(row_ptr + index_V, mask=there_V, other=float("-inf"))
        weight_V = kept_weight(x_V, there_V, lowest, least, largest, inverse)
        total += tl.sum(weight_V, 0).to(tl.float64)
    return total


@triton.jit
def from_row(
    row_ptr, notes_ptr, top_C, there_C, chunk_C, largest, inverse, top_k, top_p, least, uniform,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr,
):  # fmt: skip
    """Return the token of a row by passes over all its logits."""
    lowest = tl.full((), LOWEST, tl.int32)
    if (top_k > 0) & (top_k < SIZE):
        goal = top_k.to(tl.float64)
        lowest = threshold(row_ptr, goal, lowest, largest, inverse, True, SIZE, CHUNK)
    if top_p < 1:
        whole = kept_total(row_ptr, lowest, -1.0, largest, inverse, SIZE, CHUNK)
        goal = top_p.to(tl.float64) * whole
        nucleus = threshold(row_ptr, goal, lowest, largest, inverse, False, SIZE, CHUNK)
        lowest = tl.maximum(lowest, nucleus)
    first = tl.full((), 0, tl.int32)
    before = tl.zeros((), tl.float64)
    if (lowest == LOWEST) & (least <= 0):
        # Nothing is filtered: the chunks' sums say which chunk holds the token.
        sums_C = tl.cumsum(chunk_shares(notes_ptr, top_C, there_C, chunk_C, largest, inverse), 0)
        total = tl.max(sums_C, 0)
        first = tl.sum((there_C & (sums_C <= uniform * total)).to(tl.int32), 0)
        first = tl.minimum(first, NUM_CHUNKS - 1)
        before = tl.max(tl.where(chunk_C < first, sums_C, 0.0), 0)
    else:
        total = kept_total(row_ptr, lowest, least, largest, inverse, SIZE, CHUNK)
    return invert(
        row_ptr, uniform, total, lowest, least, largest, inverse, first, before, SIZE, CHUNK
    )


@triton.jit
def chunk_shares(notes_ptr, top_C, there_C, chunk_C, largest, inverse):
    """Return the chunks' weights [C], float64, relative to the row's largest logit."""
    share_C = tl.load(notes_ptr + chunk_C * 2 + 1, mask=there_C, other=0.0)
    return (share_C * weight(top_C, largest, inverse)).to(tl.float64)


@triton.jit
def choose(
    tokens_ptr, notes_ptr, where_ptr, groups_ptr, scratch_ptr, logits_ptr, temperature_ptr,
    top_k_ptr, top_p_ptr, min_p_ptr, uniform_ptr, logits_stride,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr, ROOM: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (rows,).

    Args:
        scratch_ptr: [rows, BLOCK_G + 2 * ROOM] int32, for the shortlist.
    """
    wait(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    chunk_C = tl.arange(0, BLOCK_C)
    there_C = chunk_C < NUM_CHUNKS
    notes_ptr += row * (NUM_CHUNKS * 2)
    top_C = tl.load(notes_ptr + chunk_C * 2, mask=there_C, other=float("-inf"))
    where_C = tl.load(where_ptr + row * NUM_CHUNKS + chunk_C, mask=there_C, other=NONE)
    broken = tl.max((top_C != top_C).to(tl.int32), 0) > 0
    largest = tl.max(tl.where(top_C == top_C, top_C, float("-inf")), 0)
    token = tl.min(tl.where(top_C == largest, where_C, NONE), 0)
    if broken | (tl.abs(largest) == float("inf")):
        tl.store(tokens_ptr + row, tl.full((), -1, tl.int64))
        return
    temperature = tl.load(temperature_ptr + row)
    if temperature <= 0:
        tl.store(tokens_ptr + row, token.to(tl.int64))
        return
    inverse = base2(temperature)
    row_ptr = logits_ptr + row * logits_stride
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    least = tl.load(min_p_ptr + row)
    uniform = tl.load(uniform_ptr + row)
    token = tl.full((), -1, tl.int32)
    if ((top_k > 0) & (top_k < SIZE)) | (top_p < 1):
        whole = tl.sum(chunk_shares(notes_ptr, top_C, there_C, chunk_C, largest, inverse), 0)
        token = from_shortlist(
            row_ptr, groups_ptr + row * (NUM_CHUNKS * CHUNK // GROUP),
            scratch_ptr + row * (BLOCK_G + 2 * ROOM), whole, largest, inverse, top_k, top_p, least,
            uniform, SIZE, GROUP, NUM_CHUNKS * CHUNK // GROUP, BLOCK_G, ROOM,
        )  # fmt: skip
    if token < 0:
        token = from_row(
            row_ptr, notes_ptr, top_C, there_C, chunk_C, largest, inverse, top_k, top_p, least,
            uniform, SIZE, CHUNK, NUM_CHUNKS,
        )  # fmt: skip
    tl.store(tokens_ptr + row, token.to(tl.int64))
