"""DeBERTa's attention: contents meet contents, and each of them meets distances.

The logit of query i and key j is (q_i·k_j + q_i·K_b + k_j·Q_b) / √(n d), where K_b and Q_b are key
and query of the distance's bucket b, and n counts the terms. They depend on contents, so no table
of distances holds them. This is a block of plain operations, which every device has: requests are
padded to the longest of a group, of which the logits stay below a bound.
Source: He et al. 2020, arXiv:2006.03654.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.slots import StepShape

#: Most logits of a head that are computed together: 16 requests of 512 tokens.
PAIRS = 2**22


@dataclass(frozen=True, slots=True)
class Distances:
    """How distances share rows, and which terms they make.

    Attributes:
        span: Half of the rows. Row span + b is of bucket b; the first and last take the rest.
        farthest: The distance of the last bucket; 0 where each distance has a bucket.
        c2p, p2c: There are terms of queries, and of keys.
    """

    span: int
    farthest: int = 0
    c2p: bool = True
    p2c: bool = True

    @property
    def reach(self) -> int:
        """The distance from which on all share a row."""
        return self.farthest or self.span

    def table(self) -> Tensor:
        """Return the row of each distance of a query behind its key, from -reach to reach.

        It is computed on the host in float64, as the authors do. Devices round logarithms their own
        way, and another bucket changes results.

        Returns:
            [2 * reach + 1] int64.
        """
        distances = torch.arange(-self.reach, self.reach + 1)
        buckets = torch.tensor([self._bucket(d) for d in range(self.reach + 1)])
        signed = buckets[distances.abs()] * distances.sign()
        return (signed + self.span).clamp(0, 2 * self.span - 1)

    def _bucket(self, distance: int) -> int:
        exact = self.span // 2
        if not self.farthest or distance <= exact:
            return distance
        share = math.log(distance / exact) / math.log((self.farthest - 1) / exact)
        return math.ceil(share * (exact - 1)) + exact


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that are computed together.

    Attributes:
        begin, end: Their tokens in the step.
        tokens: [count, length] int64, the number of each token; of padding, that of a token.
        there: [count, length] bool, what is no padding.
        places: [end - begin] int64, where each token is among count * length.
        rows: [length, length] int64, of each query and key.
    """

    begin: int
    end: int
    tokens: Tensor
    there: Tensor
    places: Tensor
    rows: Tensor


class DisentangledAttention:
    """Attention over the rows of a step, whose requests have all their tokens in it.

    Args:
        heads: Of this rank.
        dim: Channels of a head.
        distances: See there.
        device: Of what it attends over.
    """

    def __init__(
        self, heads: int, dim: int, distances: Distances, device: str | torch.device = "cpu"
    ) -> None:
        self._heads, self._dim, self._distances = heads, dim, distances
        self._table = distances.table().to(device)
        terms = 1 + distances.c2p + distances.p2c
        self._scale = (dim * terms) ** -0.5

    def prepare(self, shape: StepShape) -> list[Group]:
        """Divide a step's requests into groups."""
        starts, device = shape.query_start_loc, shape.query_start_loc.device
        lengths = list(shape.host_lens[0] if shape.host_lens else starts.diff().tolist())
        made, begin = [], 0
        for first, last in groups(lengths):
            longest, end = max(lengths[first:last]), begin + sum(lengths[first:last])
            at, numbers = (torch.arange(*r, device=device) for r in ((longest,), (begin, end)))
            begins, ends = starts[first:last].long(), starts[first + 1 : last + 1].long()
            there = at < (ends - begins)[:, None]
            tokens = torch.where(there, begins[:, None] + at, begins[:, None])
            request = torch.bucketize(numbers, ends, right=True)
            places = request * longest + numbers - begins[request]
            reach = self._distances.reach
            rows = self._table[(at[:, None] - at).clamp(-reach, reach) + reach]
            made.append(Group(begin, end, tokens, there, places, rows))
            begin = end
        return made

    def __call__(self, qkv: Tensor, relative: Tensor, prepared: list[Group]) -> Tensor:
        """Attend.

        Args:
            qkv: [num_tokens, 3 * heads * dim], model dtype.
            relative: [2 * span, at least 2 * heads * dim], queries and keys of buckets.
            prepared: What `prepare` returned for this step.

        Returns:
            [num_tokens, heads * dim], model dtype.
        """
        out = qkv.new_empty(len(qkv), self._heads * self._dim)
        for group in prepared:
            made = self._attend(qkv, relative, group)
            out[group.begin : group.end] = made.flatten(0, 1)[group.places]
        return out

    def _attend(self, qkv: Tensor, relative: Tensor, group: Group) -> Tensor:
        heads, dim = self._heads, self._dim
        count, length = group.tokens.shape
        parts = qkv[group.tokens].view(count, length, 3, heads, dim).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind()
        by_row = relative[:, : 2 * heads * dim].view(-1, 2, heads, dim).permute(1, 2, 3, 0)
        scores = q @ k.transpose(-1, -2)
        rows = group.rows.expand(count, heads, length, length)
        if self._distances.c2p:
            scores += (q @ by_row[1]).gather(-1, rows)
        if self._distances.p2c:  # of key j and query i, whose row is that of i - j
            scores += (k @ by_row[0]).gather(-1, rows.transpose(-1, -2)).transpose(-1, -2)
        scores = (scores.float() * self._scale).masked_fill_(
            ~group.there[:, None, None, :], float("-inf")
        )
        weights = torch.softmax(scores, dim=-1).to(v.dtype)
        return (weights @ v).transpose(1, 2).reshape(count, length, heads * dim)


def groups(lengths: list[int]) -> Iterator[tuple[int, int]]:
    """Yield beginning and end of runs of requests, each with at most `PAIRS` pairs of tokens."""
    first, longest = 0, 0
    for i, length in enumerate(lengths):
        longer = max(longest, length)
        if i > first and longer * longer * (i + 1 - first) > PAIRS:
            yield first, i
            first, longer = i, length
        longest = longer
    if lengths:
        yield first, len(lengths)
