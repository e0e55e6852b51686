"""Indexer layer: the choice of the tokens that sparse attention reads, over a cache of their keys.

Layers may share a choice: the one that makes it keeps it until its next step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hotshoe.layers.cache import Prepare
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.rotary import Rotary
from hotshoe.layers.rows import RowLayer
from hotshoe.slots import CacheView, IndexerOp, IndexerSpec


@dataclass(frozen=True, slots=True)
class Asked:
    """Queries and weights by which each token of a step chooses others.

    Attributes:
        q: [num_tokens, num_heads, head_dim], rotated, model dtype.
        weights: [num_tokens, num_heads] float32.
    """

    q: Tensor
    weights: Tensor


class Chooser(Protocol):
    """Chooses the tokens that sparse attention reads.

    Attributes:
        spec: Of its heads and what they choose among.
        top_k: Most tokens that a query reads.
        chosen: [num_tokens, top_k] int32, of the last step that ran, as `IndexerOp` returns it.
    """

    spec: IndexerSpec
    top_k: int
    chosen: Tensor

    def write(self, q: Tensor, key: Tensor, weights: Tensor, batch: ForwardBatch) -> Asked:
        """Write the step's keys into the cache, and return the queries for `choose`.

        Args:
            q: [num_tokens, num_heads * head_dim]; overwritten.
            key: [num_tokens, head_dim], normed, not rotated.
            weights: [num_tokens, num_heads] float32.
            batch: The step.
        """

    def choose(self, asked: Asked, views: Sequence[CacheView]) -> None:
        """Choose for every token of the step; writes `chosen`."""


class Indexer(RowLayer):
    """One layer's choice between the projections of its small heads and sparse attention.

    Every rank chooses for itself, by all heads: tokens are equal on all.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: Sizes and types; pairs are those of the rotation.
        rotary: The rotation, over `rope_dim` channels.

    Attributes are those of `Chooser`, too.
    """

    chosen: Tensor

    def __init__(self, ctx: BuildContext, spec: IndexerSpec, rotary: Rotary) -> None:
        assert rotary.rotary_dim == spec.rope_dim
        self.spec, self.top_k = spec, spec.top_k
        self._op: IndexerOp = ctx.selector.choose("indexer", spec)
        self._cos_sin = rotary.table
        super().__init__("index", spec.block_size, spec.row, ctx.device)
        self.planner: tuple[Hashable, Prepare] = (spec, self._op.prepare)
        ctx.cache_layers.append(self)

    def write(self, q: Tensor, key: Tensor, weights: Tensor, batch: ForwardBatch) -> Asked:
        """See `Chooser`."""
        q = q.view(len(q), self.spec.num_heads, self.spec.head_dim)
        slots = batch.views[self.view].slot_mapping
        q = self._op.write(q, key, batch.positions, self._cos_sin, self.cache, slots)
        return Asked(q, weights)

    def choose(self, asked: Asked, views: Sequence[CacheView]) -> None:
        """See `Chooser`."""
        prepared = views[self.view].prepared
        self.chosen = self._op(asked.q, asked.weights, self.cache, prepared)


def pack(q: Tensor, asked: Asked) -> Tensor:
    """Join what goes from one piece of a recorded step to the next, byte by byte.

    Args:
        q: [num_tokens, num_heads, size] of attention, of the type of the indexer's q.
        asked: What the indexer chooses by.

    Returns:
        A row for each token, in q's dtype.
    """
    weights = asked.weights.contiguous().view(q.dtype)
    return torch.cat((q.flatten(1), asked.q.flatten(1), weights), dim=1)


def unpack(packed: Tensor, heads: tuple[int, int], spec: IndexerSpec) -> tuple[Tensor, Asked]:
    """Part what `pack` joined.

    Args:
        packed: What it returned.
        heads: Number and size of attention's heads.
        spec: The indexer's.
    """
    sizes = [math.prod(heads), spec.num_heads * spec.head_dim]
    q, own, weights = torch.split(packed, [*sizes, packed.shape[1] - sum(sizes)], dim=1)
    own = own.reshape(-1, spec.num_heads, spec.head_dim)
    return q.reshape(-1, *heads), Asked(own, weights.contiguous().view(torch.float32))
