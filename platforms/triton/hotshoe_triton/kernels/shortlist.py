"""Filters over the largest logits of a row, gathered in order of their index.

The k-th largest of the groups' maxima is a bound that at least k logits reach. All logits that
reach it form the shortlist: for top-k it holds everything that is kept; for top-p it does so if
its weight reaches the share that is asked for, which is checked. Most rows of a language model
need no more, and never a pass over the vocabulary.

Shape suffixes: G groups, W ways, L entries of the shortlist.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NONE = tl.constexpr(2147483647)
LOWEST = tl.constexpr(-2147483648)
WAYS = tl.constexpr(16)


@triton.jit
def ordered(x):
    """Map float32 to int32 such that integers order as the values do; both zeros are equal."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def base2(temperature):
    """Return log2(e) / temperature, finite for every positive temperature."""
    return LOG2E / tl.maximum(temperature, 1.0e-30)


@triton.jit
def weight(x, largest, inverse):
    """Return exp((x - largest) / temperature)."""
    return tl.exp2((x - largest) * inverse)


#: Groups that are looked into for top-p, and at most for top-k.
WANTED = tl.constexpr(256)
#: Groups that are read at a time.
TOGETHER = tl.constexpr(16)


@triton.jit
def step_down(low, width, reached_W):
    """Return the lower end of the next, WAYS times smaller interval [low, low + width).

    Measures fall with the bound, and the first bound always counts as reached.
    """
    return low + tl.maximum(tl.sum(reached_W.to(tl.int64), 0) - 1, 0) * width


@triton.jit
def narrow(key_L, value_L, goal):
    """Return the highest key such that the values at or above it reach the goal, else LOWEST."""
    low = tl.full((), LOWEST, tl.int64)
    for digit in range(8):
        width = tl.full((), 1, tl.int64) << (28 - 4 * digit)
        bound_W = (low + tl.arange(0, WAYS) * width).to(tl.int32)
        above_WL = key_L[None, :] >= bound_W[:, None]
        measure_W = tl.sum(tl.where(above_WL, value_L[None, :], 0.0), 1).to(tl.float64)
        low = step_down(low, width, measure_W >= goal)
    return low.to(tl.int32)


@triton.jit
def gather(
    row_ptr, tops_ptr, ids_ptr, values_ptr, wanted,
    SIZE: tl.constexpr, GROUP: tl.constexpr, NUM_GROUPS: tl.constexpr, BLOCK_G: tl.constexpr,
    ROOM: tl.constexpr,
):  # fmt: skip
    """Write the shortlist: ROOM logits' bits, then ROOM indices. Return its length, which may
    exceed ROOM; what exceeds it is not written."""
    group_G = tl.arange(0, BLOCK_G)
    top_G = tl.load(tops_ptr + group_G, mask=group_G < NUM_GROUPS, other=float("-inf"))
    here_G = (group_G < NUM_GROUPS).to(tl.float32)
    bound = narrow(ordered(top_G), here_G, wanted.to(tl.float64))
    chosen_G = ((ordered(top_G) >= bound) & (group_G < NUM_GROUPS)).to(tl.int32)
    tl.store(ids_ptr + tl.cumsum(chosen_G, 0) - 1, group_G, mask=chosen_G > 0)
    tl.debug_barrier()
    num_chosen = tl.sum(chosen_G, 0)
    count = tl.full((), 0, tl.int32)
    lane = tl.arange(0, TOGETHER * GROUP)
    for first in range(0, num_chosen, TOGETHER):
        place = first + lane // GROUP
        group = tl.load(ids_ptr + place, mask=place < num_chosen, other=0)
        index = group * GROUP + lane % GROUP
        there = (place < num_chosen) & (index < SIZE)
        x = tl.load(row_ptr + index, mask=there, other=float("-inf"))
        kept = (there & (ordered(x) >= bound)).to(tl.int32)
        to = count + tl.cumsum(kept, 0) - 1
        fits = (kept > 0) & (to < ROOM)
        tl.store(values_ptr + to, x.to(tl.int32, bitcast=True), mask=fits)
        tl.store(values_ptr + ROOM + to, index, mask=fits)
        count += tl.sum(kept, 0)
    tl.debug_barrier()
    return count


@triton.jit
def from_shortlist(
    row_ptr, tops_ptr, scratch_ptr, whole, largest, inverse, top_k, top_p, least, uniform,
    SIZE: tl.constexpr, GROUP: tl.constexpr, NUM_GROUPS: tl.constexpr, BLOCK_G: tl.constexpr,
    ROOM: tl.constexpr,
):  # fmt: skip
    """Return the token of a row, or -1 where the shortlist does not hold all that matters.

    Args:
        tops_ptr: [NUM_GROUPS] float32, largest logit of each group.
        scratch_ptr: [BLOCK_G + 2 * ROOM] int32.
        whole: Weight of all logits, float64.
    """
    ranked = (top_k > 0) & (top_k < SIZE)
    wanted = tl.where(ranked, top_k, WANTED)
    token = tl.full((), -1, tl.int32)
    if wanted <= WANTED:
        values_ptr = scratch_ptr + BLOCK_G
        count = gather(
            row_ptr, tops_ptr, scratch_ptr, values_ptr, wanted, SIZE, GROUP, NUM_GROUPS, BLOCK_G,
            ROOM,
        )  # fmt: skip
        entry_L = tl.arange(0, ROOM)
        there_L = entry_L < count
        bits_L = tl.load(values_ptr + entry_L, mask=there_L, other=0)
        x_L = tl.where(there_L, bits_L.to(tl.float32, bitcast=True), float("-inf"))
        key_L = ordered(x_L)
        weight_L = weight(x_L, largest, inverse)
        if ranked:
            lowest = narrow(key_L, there_L.to(tl.float32), top_k.to(tl.float64))
            weight_L = tl.where(key_L >= lowest, weight_L, 0.0)
            whole = tl.sum(weight_L, 0).to(tl.float64)
        goal = top_p.to(tl.float64) * whole
        enough = tl.sum(weight_L, 0).to(tl.float64) >= goal
        if (count <= ROOM) & (ranked | enough):
            if top_p < 1:
                weight_L = tl.where(key_L >= narrow(key_L, weight_L, goal), weight_L, 0.0)
            weight_L = tl.where(weight_L >= least, weight_L, 0.0)
            sums_L = tl.cumsum(weight_L, 0).to(tl.float64)
            mark = uniform * tl.sum(weight_L, 0).to(tl.float64)
            hit_L = (weight_L > 0) & (sums_L > mark)
            last = tl.max(tl.where(weight_L > 0, entry_L, -1), 0)
            entry = tl.minimum(tl.min(tl.where(hit_L, entry_L, NONE), 0), last)
            token = tl.load(values_ptr + ROOM + entry)
    return token
