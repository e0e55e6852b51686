"""Heads without caches that read those of their model: all drafts of a chain stand at one position.

The model's caches end with the last token that it computed. A chain of drafts adds nothing to them,
so each of its steps sees the same keys and values. Nothing is written, and nothing is read of the
tokens of a step but the last ones that are right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hotshoe.layers.cache import CacheLayer
from hotshoe.models.base import ReadingHead
from hotshoe.runner.ahead import Ahead, Chain, MadeDrafts, samples_of
from hotshoe.runner.rows import StepInputs


class ReadingAhead(Ahead):
    """See `Ahead`."""

    _head: ReadingHead
    _advances = False

    def _layers(self) -> Sequence[CacheLayer]:
        return self._head.reads

    def __call__(
        self, inputs: StepInputs, token_index: Tensor, verified: Tensor | None, sampled: Tensor
    ) -> MadeDrafts | None:
        """See `Ahead`."""
        samples, num = samples_of(inputs), self._num
        if not num or not len(samples.rows):
            self._states = self._batch = None
            return None
        read = self._behind(inputs, samples, token_index, verified, sampled)
        self._states = self._batch = None
        own = read.ids[read.last], read.states[read.last]
        longest = int(inputs.seq_lens.max())
        step = self._begin_chain(samples.rows, *own, read.positions, longest)
        made = [step(at)[: len(samples.rows)].clone() for at in range(1, num + 1)]
        return MadeDrafts(samples.rows.tolist(), torch.stack(made, 1))

    def warm_up(self) -> None:
        """See `Ahead`."""
        assert self._states is not None
        if self._chain is None:  # recordings read it
            self._chain = Chain.of(self._states[:1], len(self._tables.blocks[0]))
        self._one_more(self._chain, 1, 1, 0)
        self._states = self._batch = None
