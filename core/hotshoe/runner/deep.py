"""Runs a head of several layers, of which the k-th guesses the k-th draft of a chain.

At a position, each layer but the first reads what the one before it returned one position earlier,
and the token behind. Counted so, all layers know the same tokens, and whatever `ahead` says of
places, prefixes and refused drafts holds of each. A layer trained to guess k tokens further reads
pairs that lie one position apart from those of the layer before it; rotation sees distances alone.
Before a sequence's first token there is nothing to read: zeros stand there, in as many positions as
there are layers in front.

So each step needs what a layer returned at the position before it. It is kept for each row, from
the last token that is right. Steps that want no drafts run the first layer alone, at its price.
Their rows lack entries of the other layers from then on, and where such a row samples, the first
layer drafts all tokens of the step's chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hotshoe.layers import ForwardBatch
from hotshoe.layers.cache import CacheLayer
from hotshoe.models.base import DeepHead, DraftHead
from hotshoe.runner.ahead import (
    Ahead,
    Behind,
    MadeDrafts,
    Samples,
    Tables,
    Written,
    samples_of,
    unread,
)
from hotshoe.runner.rows import StepInputs
from hotshoe.sampling.rows import place
from hotshoe.types import StepPlan


class DeepAhead(Ahead):
    """See `Ahead`. Steps of a chain differ by the layer that guesses; kind 0 is the first layer's,
    for rows that lack entries of the others."""

    _head: DeepHead

    def __init__(self, head: DeepHead, tables: Tables) -> None:
        self._deep: list[DraftHead] = [head, *head.following]
        super().__init__(head, tables)
        self._kinds = 1 + len(self._deep)
        self._whole = np.zeros(len(tables.blocks[0]), np.bool_)
        self._goes_deep = False
        # Of each layer but the last and each row, what it returned at the last right token.
        self._kept: Tensor | None = None

    def _layers(self) -> Sequence[CacheLayer]:
        return [layer for head in self._deep for layer in head.cache_layers]

    def begin(self, plan: StepPlan) -> None:
        """See `Ahead`."""
        super().begin(plan)
        for new in plan.new_rows:
            self._whole[new.row] = True
            if self._kept is not None:
                self._kept[:, new.row].zero_()
        if not plan.num_ahead:
            self._whole[plan.rows] = False

    def __call__(
        self, inputs: StepInputs, token_index: Tensor, verified: Tensor | None, sampled: Tensor
    ) -> MadeDrafts | None:
        """See `Ahead`."""
        if not self._num:
            return super().__call__(inputs, token_index, verified, sampled)
        samples = samples_of(inputs)
        self._goes_deep = bool(self._whole[samples.rows].all())
        read = self._behind(inputs, samples, token_index, verified, sampled)
        self._states = self._batch = None
        passed, found = self._head.forward(read.ids, read.states, read.batch)
        returned = self._fill(inputs, samples, read, passed)
        if not len(samples.rows):
            return None
        longest = int(inputs.seq_lens.max()) + self._num
        own = returned, found[read.last], read.positions, longest
        made = self._go_on(samples.rows, *own)
        return MadeDrafts(samples.rows.tolist(), made.contiguous())

    def warm_up(self) -> None:
        """See `Ahead`. Each layer runs once, over as many tokens as it may get."""
        assert self._states is not None and self._batch is not None
        ids = self._tables.tokens.new_zeros(len(self._states))
        states, batch = self._states, self._batch
        super().warm_up()
        for layer in self._deep:
            states, found = layer.forward(ids, states, batch)
            layer.guess(found[-1:])

    def _fill(self, inputs: StepInputs, samples: Samples, read: Behind, passed: Tensor) -> Tensor:
        """Run the other layers over a step, and return what each returned, [r, layers, size], at
        the last right token of rows that sample; nothing of the last layer.

        Args:
            passed: [n, size] what the first layer returned.
        """
        device, starts = passed.device, inputs.query_start_loc.astype(np.int64)
        rows, firsts = place(inputs.rows.astype(np.int64), device), place(starts[:-1], device)
        ends = place(starts[1:] - 1, device)
        number = np.zeros(len(self._whole), np.int64)
        number[inputs.rows] = np.arange(len(inputs.rows))
        ends.index_copy_(0, place(number[samples.rows], device), read.last)
        returned = self._room(passed[read.last])
        for i, layer in enumerate(self._deep[1:]):
            if self._kept is None:
                self._kept = passed.new_zeros(len(self._deep) - 1, len(self._whole), len(passed[0]))
            before = passed.roll(1, 0).index_copy_(0, firsts, self._kept[i][rows])
            self._kept[i].index_copy_(0, rows, passed[ends])
            returned[:, i] = passed[read.last]
            passed = self._ran(i + 1, layer, read.ids, before, read.batch)
        return returned

    def _ran(
        self, i: int, layer: DraftHead, ids: Tensor, states: Tensor, batch: ForwardBatch
    ) -> Tensor:
        """Run a layer, and return what the next one reads; the last one writes its caches alone."""
        if i < len(self._deep) - 1:
            return layer.forward(ids, states, batch)[0]
        with suppress(Written):
            layer.forward(ids, states, replace(batch, between=unread))
        return states

    def _room(self, passed: Tensor) -> Tensor:
        return passed.unsqueeze(1).repeat(1, len(self._deep), 1)

    def _kind(self, at: int) -> int:
        return min(at, len(self._deep)) if self._goes_deep else 0

    def _guessed(self, tokens: Tensor, passed: Tensor, batch: ForwardBatch, kind: int) -> Tensor:
        """See `Ahead`. Layers behind the one that guesses write their caches."""
        own = min(kind, len(self._deep) - 1)
        read = kind - 1 if kind else 0
        behind = range(len(self._deep) - 1, own, -1) if kind else ()
        for i in behind:  # from the last one on, as each reads what is still to be replaced
            states = passed[:, i - 1].contiguous()
            passed[:, i].copy_(self._ran(i, self._deep[i], tokens, states, batch))
        handed_on, found = self._deep[own].forward(tokens, passed[:, read].contiguous(), batch)
        passed[:, own].copy_(handed_on)
        return self._deep[own].guess(found).to(torch.int32)
