"""Embeddings of n-grams: a token and those before it choose rows of a large table by hashes.

Tokens before come from a cache of states: the digits of their ids go through slot `short_conv`,
whose taps pick the token so many places before. A text's end hides the tokens before it.

Numbers are those of Qwen4-Exp: a multiplier of each place by splitmix64 (Steele et al. 2014,
"Fast splittable pseudorandom number generators"), and as many rows for each head as a prime says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, Embedding, ForwardBatch
from hotshoe.layers.states import StateLayer
from hotshoe.slots import ShortConvSpec, ShortConvWeights
from hotshoe_models.hyper import DIGITS, of_digits

WORD = (1 << 64) - 1
#: Of splitmix64.
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
#: That a layer's seed differs from the one before it by.
APART = 10007


@dataclass(frozen=True, slots=True, kw_only=True)
class NGramSpec:
    """The table of one layer.

    Attributes:
        size: Tokens of the largest n-gram; there are those of 2, 3, ... tokens.
        heads: Rows that each length of n-gram chooses.
        dim: Channels of a row.
        base: Least number of rows that a head chooses among.
        multiple: That all rows of a table are padded to.
        seed, index: Of the multipliers; the table's number among those of the model.
        end: The id of a text's end.
        vocab_size: Ids.
    """

    size: int
    heads: int
    dim: int
    base: int
    multiple: int
    seed: int
    index: int
    end: int
    vocab_size: int

    @property
    def choices(self) -> list[int]:
        """Rows that each head chooses among, of 2-grams first."""
        count = (self.size - 1) * self.heads
        return list(islice(_primes(self.base), self.index * count, (self.index + 1) * count))

    @property
    def multipliers(self) -> list[int]:
        """A factor of ids for each place of an n-gram, the token itself first; odd."""
        bound = max(1, ((1 << 63) - 1) // self.vocab_size // 2)
        seed = self.seed + APART * self.index
        return [2 * (_mixed(seed + STEP * (i + 1)) % bound) + 1 for i in range(self.size)]


def _mixed(value: int) -> int:
    """Return the output of splitmix64 in a state."""
    value = (value + STEP) & WORD
    value = ((value ^ (value >> 30)) * FIRST) & WORD
    value = ((value ^ (value >> 27)) * SECOND) & WORD
    return value ^ (value >> 31)


def _primes(least: int) -> Iterator[int]:
    """Yield the primes from a number on."""
    number = max(least, 2)
    while True:
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            yield number
        number += 1


class NGramEmbedding:
    """One layer's table.

    Args:
        ctx: The build context, where the cache of ids is registered.
        spec: Sizes.
        name: Checkpoint name of the table.
    """

    def __init__(self, ctx: BuildContext, spec: NGramSpec, name: str) -> None:
        rows = -(-sum(spec.choices) // spec.multiple) * spec.multiple
        self._table = Embedding(ctx, name, rows, spec.dim)
        self._before = _Before(ctx, spec.size - 1)
        choices = torch.tensor(spec.choices, device=ctx.device)
        self._choices = choices.view(-1, spec.heads)
        self._first = (choices.cumsum(0) - choices).view_as(self._choices)
        self._channels = len(choices) * spec.dim
        self._factors, self._end = spec.multipliers, spec.end

    def __call__(self, ids: Tensor, digits: Tensor, batch: ForwardBatch) -> Tensor:
        """Return [num_tokens, channels of all heads].

        Args:
            ids: [num_tokens] int64.
            digits: [num_tokens, DIGITS] of these.
            batch: The step.
        """
        earlier, there = self._before(digits, batch)
        hashed, rows = ids * self._factors[0], []
        for place, factor in enumerate(self._factors[1:]):
            token = earlier[:, place]
            there[:, place] &= token != self._end
            seen = there[:, : place + 1].all(1)
            hashed = hashed ^ (torch.where(seen, token, self._end) * factor)
            rows.append(hashed[:, None] % self._choices[place] + self._first[place])
        chosen = torch.cat(rows, 1)
        return self._table(chosen.flatten().int()).view(-1, self._channels)


class _Before(StateLayer[ShortConvSpec]):
    """The ids of the tokens before, whole on each rank."""

    def __init__(self, ctx: BuildContext, count: int) -> None:
        self._count, each = count, DIGITS + 1
        held = ctx.conv_state_dtype or ctx.dtype
        sizes = (count * each, count + 1, ctx.dtype, held, ctx.block_size, ctx.checkpoints)
        super().__init__(ctx, "short_conv", ShortConvSpec(*sizes), None, ShortConvWeights)
        place = {"device": ctx.device, "dtype": ctx.torch_dtype}
        taps = torch.eye(count + 1, **place)[:count].flip(0).repeat_interleave(each, 0)
        self._weights = ShortConvWeights(taps.contiguous(), None)
        self._ones = torch.ones(1, 2 * count * each, **place)

    def __call__(self, digits: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return ids [num_tokens, count] int64 of the tokens 1, 2, ... before, and whether there
        are such."""
        known = torch.cat((digits, torch.ones_like(digits[:, :1])), 1)
        gates = self._ones.expand(len(digits), -1)
        out = super().__call__(torch.cat((gates, known.repeat(1, self._count)), 1), batch)
        found = out.view(-1, self._count, DIGITS + 1)
        return of_digits(found[..., :DIGITS]), found[..., DIGITS] > 0
