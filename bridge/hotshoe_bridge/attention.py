"""Paged attention for hosts that hold keys and values densely, one tensor for a batch.

Keys and values are written into blocks in each call, which costs a copy of them: a bridge proves a
kernel and serves small batches; a host with blocks of its own has no need of this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import AttentionSpec, CacheView, StepShape
from hotshoe_bridge.operations import Operations
from hotshoe_bridge.paged import reader_and_writer, write

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence of a batch: which of its keys count, and which of its queries are real."""

    first_key: int
    last_key: int
    first_query: int
    last_query: int

    @property
    def keys(self) -> int:
        """Keys that count."""
        return self.last_key - self.first_key

    @property
    def queries(self) -> int:
        """Queries that are real."""
        return self.last_query - self.first_query


def spans(
    mask: Tensor | None, batch: int, queries: int, keys: int, window: int | None
) -> list[Span]:
    """Read padding off a mask [batch, any, queries, keys] that is true where a query sees a key.

    Raises:
        ValueError: Queries see something else than what is before them, within the window.
    """
    if mask is None:
        return [Span(0, keys, 0, queries)] * batch
    if mask.dtype != torch.bool:
        mask = mask == 0  # what is added to scores
    before = keys - queries
    at = torch.arange(queries, device=mask.device)[:, None] + before
    key = torch.arange(keys, device=mask.device)[None, :]
    causal = (key <= at) & (key > at - window if window else key >= 0)
    found = []
    for seen in mask.expand(batch, -1, -1, -1)[:, 0]:
        columns = seen.any(0).nonzero()
        if not len(columns):
            raise ValueError("a sequence of the batch has no key that any query sees")
        first, last = int(columns[0]), int(columns[-1]) + 1
        span = Span(first, last, max(first - before, 0), min(last - before, queries))
        rows = slice(span.first_query, span.last_query)
        wanted = causal[rows] & (key >= first) & (key < last)
        if not torch.equal(seen[rows], wanted):
            raise ValueError(
                "this mask is not that of causal attention; use another implementation"
            )
        found.append(span)
    return found


class DenseAttention:
    """Attention over dense keys and values, by the operations of a platform."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def __call__(
        self,
        spec: AttentionSpec,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        found: list[Span],
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            spec: Of the layer; `block_size` is this module's.
            q: [batch, heads, queries, head_dim].
            k, v: [batch, kv heads, keys, head_dim].
            found: Of `spans`.
            sinks: [heads] float32, or None.

        Returns:
            [batch, queries, heads, head_dim], zeros for queries that are not real.
        """
        spec = replace(spec, block_size=BLOCK_TOKENS)
        op, writer = reader_and_writer(spec, self._operations.choose_once)
        held = [self._rows(k, s.first_key, s.last_key, i) for i, s in enumerate(found)]
        values = [self._rows(v, s.first_key, s.last_key, i) for i, s in enumerate(found)]
        asked = [self._rows(q, s.first_query, s.last_query, i) for i, s in enumerate(found)]
        table, slots = _places(found, q.device)
        cache = _cache(spec, op, int(table.max()) + 2, q)
        write(writer, torch.cat(held), torch.cat(values), cache, torch.cat(slots))
        own = [places[s.keys - s.queries :] for places, s in zip(slots, found, strict=True)]
        view = CacheView(table, torch.cat(own))
        prepared = op.prepare(_shape(found, q.device), view)
        flat = op(torch.cat(asked), cache, prepared, sinks).view(-1, *asked[0].shape[1:])
        out = torch.zeros_like(q.transpose(1, 2), memory_format=torch.contiguous_format)
        parts = flat.split([span.queries for span in found])
        for i, (span, part) in enumerate(zip(found, parts, strict=True)):
            out[i, span.first_query : span.last_query] = part
        return out

    @staticmethod
    def _rows(tensor: Tensor, first: int, last: int, i: int) -> Tensor:
        """Return one sequence's rows [tokens, heads, head_dim]."""
        return tensor[i, :, first:last].transpose(0, 1).contiguous()


def _places(found: list[Span], device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Give each sequence blocks of its own, one behind the other.

    Returns:
        The block table, and the places of each sequence's keys.
    """
    counts = [-(-span.keys // BLOCK_TOKENS) for span in found]
    firsts = [0, *accumulate(counts)]
    table = torch.zeros(len(found), max(counts), dtype=torch.int32, device=device)
    slots = []
    for i, (span, count) in enumerate(zip(found, counts, strict=True)):
        table[i, :count] = torch.arange(firsts[i], firsts[i] + count, device=device)
        begin = firsts[i] * BLOCK_TOKENS
        slots.append(torch.arange(begin, begin + span.keys, dtype=torch.int32, device=device))
    return table, slots


def _cache(spec: AttentionSpec, op: Any, blocks: int, like: Tensor) -> Tensor:
    numel = spec.block_size * spec.num_kv_heads * spec.head_dim
    whole = torch.zeros(2, blocks, numel + op.layout.gap, dtype=like.dtype, device=like.device)
    return whole[..., :numel]


def _shape(found: list[Span], device: torch.device) -> StepShape:
    counts, lengths = [s.queries for s in found], [s.keys for s in found]
    starts = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)
    held = torch.tensor(lengths, dtype=torch.int32, device=device)
    return StepShape(
        len(found), starts, held, max(counts), max(lengths), host_lens=(counts, lengths)
    )
