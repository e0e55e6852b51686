"""The gated delta rule over prompts, where each channel has a decay of its own: pairs of tokens.

Shape suffixes: L tokens of a chunk, K channels of keys.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.elementwise import exp
from hotshoe_triton.kernels.gated_delta import log_decay
from hotshoe_triton.kernels.states import (
    FADED,
    add_product,
    load_split,
    split,
    store_split,
    whole,
)

#: Most that the logarithm of a factor above 1 may be, so that products of such stay finite.
SPREAD = tl.constexpr(32.0)


@triton.jit
def total(ones_LL, high_LK, low_LK, PARTS: tl.constexpr):
    """Return the sum of some tokens' logarithms for each token. No sum is a difference."""
    nothing_LK = tl.zeros(high_LK.shape, tl.float32)
    if PARTS == 0:
        sums_LK = tl.dot(ones_LL, high_LK, nothing_LK, input_precision="ieee")
    else:
        ones_LL = ones_LL.to(tl.bfloat16)
        sums_LK = tl.dot(ones_LL, low_LK, nothing_LK)
        sums_LK = tl.dot(ones_LL, high_LK, sums_LK)
    return sums_LK


@triton.jit
def first_level(power_LK, LEVELS: tl.constexpr):
    """Return the highest level in whose halves no channel can decay below exp(-SPREAD), or 0."""
    most, first = -tl.min(tl.min(power_LK, 1), 0), 0
    for level in tl.static_range(1, LEVELS):
        first = tl.where(most * (1 << level) <= SPREAD, level, first)
    return first


@triton.jit
def add_pairs(
    system_LL, scores_LL, q_LK, k_LK, high_LK, low_LK, first, LEVELS: tl.constexpr,
    PARTS: tl.constexpr, STATE_PARTS: tl.constexpr,
):  # fmt: skip
    """Return k k^T and q k^T of different tokens, each channel with its own decay, added to sums.

    Blocks of 2, 4, 8 .. tokens are cut into halves. From a token of the first half to one of the
    second a channel decays until the first half ends, then further. Both factors are at most 1, and
    one of them belongs to each token. Pairs within a half of level `first` have a factor above 1,
    which exp(SPREAD) bounds, so that all pairs of such a block are multiplied at once.
    """
    LENGTH: tl.constexpr = q_LK.shape[0]
    at_L = tl.arange(0, LENGTH)
    nothing_LL = tl.zeros((LENGTH, LENGTH), tl.float32)
    before_LL = at_L[None, :] <= at_L[:, None]
    for level in range(first, LEVELS):
        half_L, sign = at_L >> level, tl.where(level == first, -1.0, 1.0)
        same_LL, second_L = half_L[:, None] == half_L[None, :], (half_L & 1) == 1
        ones_LL = tl.where(same_LL & (second_L[:, None] == before_LL), 1.0, 0.0)
        sums_LK = total(ones_LL, high_LK, low_LK, STATE_PARTS)
        left_LK = exp(tl.minimum(sums_LK * tl.where(second_L, 1.0, sign)[:, None], SPREAD))
        pairs_LL = (half_L[:, None] >> 1) == (half_L[None, :] >> 1)
        pairs_LL &= (at_L[None, :] < at_L[:, None]) & ((level == first) | (same_LL == 0))
        turned_LK = exp(tl.minimum(sums_LK * tl.where(second_L, sign, 1.0)[:, None], SPREAD))
        turned_LK, low_turned_LK = split(k_LK * turned_LK, STATE_PARTS)
        turned_KL, low_KL = tl.trans(turned_LK), tl.trans(low_turned_LK)
        high_k_LK, low_k_LK = split(k_LK * left_LK, STATE_PARTS)
        found_LL = add_product(high_k_LK, low_k_LK, turned_KL, low_KL, nothing_LL, STATE_PARTS)
        system_LL += tl.where(pairs_LL, found_LL, 0.0)
        high_q_LK, low_q_LK = split(q_LK * left_LK, PARTS)
        found_LL = add_product(high_q_LK, low_q_LK, turned_KL, low_KL, nothing_LL, PARTS)
        scores_LL += tl.where(pairs_LL, found_LL, 0.0)
    return system_LL, scores_LL


@triton.jit
def fade_by_channel(
    gates_L, bias_ptr, decay_ptr, k_ptr, q_ptr, since_k_ptr, until_k_ptr, since_q_ptr, rate,
    shared_L, own_L, there_L, shared_apart, apart, K: tl.constexpr, LEVELS: tl.constexpr,
    PARTS: tl.constexpr, STATE_PARTS: tl.constexpr, BLOCK_K: tl.constexpr, FLOOR: tl.constexpr,
):  # fmt: skip
    """Store k and q, decayed since a chunk began or until it ends; return k k^T and q k^T, decayed.

    Args:
        BLOCK_K: Channels that registers have room for at once.
    """
    LENGTH: tl.constexpr = own_L.shape[0]
    at_L = tl.arange(0, LENGTH)
    system_LL = tl.zeros((LENGTH, LENGTH), tl.float32)
    scores_LL, own_scores_L = system_LL, tl.zeros((LENGTH,), tl.float32)
    since_LL = tl.where(at_L[None, :] <= at_L[:, None], 1.0, 0.0)
    for first in range(0, K, BLOCK_K):
        at_K = first + tl.arange(0, BLOCK_K)
        there_K = at_K < K
        there_LK = there_L[:, None] & there_K[None, :]
        raw_LK = tl.load(gates_L[:, None] + at_K[None, :], mask=there_LK, other=0.0).to(tl.float32)
        raw_LK += tl.load(bias_ptr + at_K, mask=there_K, other=0.0)[None, :]
        power_LK = tl.maximum(tl.where(there_LK, log_decay(raw_LK, rate, FLOOR), 0.0), FADED)
        tl.store(decay_ptr + at_K, exp(tl.sum(power_LK, 0)), mask=there_K)
        shared_LK = shared_L[:, None] * K + at_K[None, :]
        k_LK, low_LK = load_split(k_ptr + shared_LK, shared_apart * K, there_LK, STATE_PARTS)
        k_LK = whole(k_LK, low_LK, STATE_PARTS)
        q_LK, low_LK = load_split(q_ptr + shared_LK, shared_apart * K, there_LK, PARTS)
        q_LK = whole(q_LK, low_LK, PARTS)
        own_scores_L += tl.sum(q_LK * k_LK, 1)
        high_LK, low_LK = split(power_LK, STATE_PARTS)
        own_LK = own_L[:, None] * K + at_K[None, :]
        left_LK = exp(total(since_LL, high_LK, low_LK, STATE_PARTS))
        store_split(since_q_ptr + own_LK, apart * K, q_LK * left_LK, there_LK, PARTS)
        store_split(since_k_ptr + own_LK, apart * K, k_LK * left_LK, there_LK, STATE_PARTS)
        left_LK = exp(total(1.0 - since_LL, high_LK, low_LK, STATE_PARTS))
        store_split(until_k_ptr + own_LK, apart * K, k_LK * left_LK, there_LK, STATE_PARTS)
        system_LL, scores_LL = add_pairs(
            system_LL, scores_LL, q_LK, k_LK, high_LK, low_LK, first_level(power_LK, LEVELS),
            LEVELS, PARTS, STATE_PARTS,
        )  # fmt: skip
    same_LL = at_L[:, None] == at_L[None, :]
    return system_LL, tl.where(same_LL, own_scores_L[:, None], scores_LL)
