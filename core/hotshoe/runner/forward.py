"""What of a step runs the model: views of its caches, hidden states, logits.

`hotshoe.runner.runner` stages a step's arrays before and samples behind; recorded steps repeat what
is here without calling it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hotshoe.layers import ForwardBatch
from hotshoe.layers.context import BetweenPieces
from hotshoe.models.base import GENERATE, Model, TappedModel
from hotshoe.runner.adapters import AdapterRows
from hotshoe.runner.ahead import Ahead, Tables
from hotshoe.runner.graphs import Pieces
from hotshoe.runner.peers import Peers
from hotshoe.runner.rows import StepInputs
from hotshoe.slots import CacheView, StepShape, TreeNodes


@dataclass(frozen=True, slots=True)
class StagedInputs:
    """Fields of `StepInputs` on the device. Those that a recorded step reads come first, ahead of
    them what recorded pieces read, so that their place depends on the padded size alone. Without
    trees there are no nodes, and spans are flat."""

    token_index: Tensor
    positions: Tensor
    slot_mapping: Tensor
    rows: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    node_counts: Tensor
    node_lines: Tensor
    spans: Tensor
    sampled_index: Tensor
    sample_at: Tensor
    block_index: Tensor
    block_values: Tensor
    token_put_index: Tensor
    token_put_values: Tensor


class Forward:
    """Calls a model for steps.

    Args:
        model: Built, loaded, with a KV cache.
        tables: Of tokens and blocks, and what the model's layers read of a step.
        peers: The ranks that run the same steps.
        adapters: Of rows; None for none.
        pieces: Records what is between attention.

    Attributes:
        ahead: Makes drafts behind each step; None where nobody does.
    """

    def __init__(
        self,
        model: Model,
        tables: Tables,
        peers: Peers,
        adapters: AdapterRows | None,
        pieces: Pieces,
    ) -> None:
        self._model, self._tables, self._peers = model, tables, peers
        self._adapters, self._pieces = adapters, pieces
        self._is_last, self._tapped = peers.mesh.pp.is_last, isinstance(model, TappedModel)
        self.ahead: Ahead | None = None

    def __call__(
        self,
        inputs: StepInputs,
        staged: StagedInputs,
        every: bool,
        given: Sequence[tuple[slice, Tensor]] = (),
        hidden: Tensor | None = None,
    ) -> Tensor:
        """Return hidden states of every token of a step, or of those that sample.

        Args:
            given: Embeddings that come from requests, and their places.
            hidden: What the stage before has made; None in the first.
        """
        every = every or not self._is_last or len(inputs.sample_at) == inputs.num_tokens
        own = slice(inputs.num_tokens)
        shape, views = self.read(inputs, staged)
        batch = ForwardBatch(
            positions=staged.positions[own],
            shape=shape,
            views=views,
            outputs_at=None if every or (self.ahead and not self._tapped) else staged.sample_at,
        )
        if hidden is None:
            hidden = self._model.embed(self._tables.tokens[staged.token_index[own]])
            for places, rows in given:
                scaled = self._model.scale_embeddings(rows.to(hidden.dtype))
                hidden[places, : self._model.hidden_size] = scaled
        hidden = self._model.forward(hidden, batch)
        if self.ahead is not None:
            self.ahead.keep(hidden, batch)
            hidden = hidden if every else hidden[staged.sample_at]
        return hidden

    def decode(self, staged: StagedInputs) -> Tensor:
        """Return what a stage makes of one token of each request, or of trees, whatever lengths
        requests have: logits in the last one, but hidden states where a head needs them."""
        shape = _shape(staged, 1, self._tables.max_model_len)
        if len(staged.node_lines):
            shape.max_query_len = len(staged.positions)
            shape.tree = TreeNodes(staged.node_counts, staged.node_lines)
        if len(staged.spans):
            shape.spans = staged.spans.view(-1, 2)
        batch = ForwardBatch(staged.positions, shape, self._views(shape, staged))
        hidden = self._model.forward(self._entering(staged), batch)
        return self.logits(hidden) if self._is_last and self.ahead is None else hidden

    def in_pieces(self, staged: StagedInputs, between: BetweenPieces) -> Tensor:
        """Return hidden states of every token, leaving attention to `between`."""
        slots = staged.slot_mapping.view(len(self._tables.blocks), -1)
        views = [
            CacheView(view.block_table, slots[plan.group])
            for view, plan in zip(self._pieces.views, self._tables.plans, strict=True)
        ]
        batch = ForwardBatch(staged.positions, self._pieces.shape, views, between=between)
        return self._model.forward(self._entering(staged), batch)

    def set_pieces(self, inputs: StepInputs, staged: StagedInputs) -> None:
        """Say of which step the pieces are that run next."""
        self._pieces.shape, self._pieces.views = self.read(inputs, staged)

    def logits(self, hidden: Tensor, row: int | None = None) -> Tensor:
        """Return logits of hidden states; `row` says whose adapter has a part in them."""
        if self._adapters is not None and row is not None:
            with self._adapters.only(row, len(hidden)):
                return self._model.head(hidden, GENERATE)
        return self._model.head(hidden, GENERATE)

    def vectors(self, hidden: Tensor, task: str) -> Tensor:
        """Return vectors of hidden states, for rows that pool."""
        return self._model.head(hidden, task)

    def _entering(self, staged: StagedInputs) -> Tensor:
        """Return what a recorded step begins with, read from a fixed address and left there, as
        some recordings are tried twice."""
        if not self._peers.mesh.pp.is_first:
            return self._peers.inbox[: len(staged.token_index)].clone()
        return self._model.embed(self._tables.tokens.index_select(0, staged.token_index))

    def read(
        self, inputs: StepInputs, staged: StagedInputs
    ) -> tuple[StepShape, Sequence[CacheView]]:
        """Describe a step to layers with a cache, without tokens of no request."""
        counts = np.diff(inputs.query_start_loc)
        shape = _shape(staged, int(counts.max()), int(inputs.seq_lens.max()))
        shape.host_lens = (counts.tolist(), inputs.seq_lens.tolist())
        shape.host_drafts = inputs.drafts
        if inputs.tree is not None:
            shape.tree = TreeNodes(staged.node_counts, staged.node_lines)
        return shape, self._views(shape, staged, inputs.num_tokens)

    def _views(
        self, shape: StepShape, staged: StagedInputs, num_tokens: int | None = None
    ) -> Sequence[CacheView]:
        """Make every view of a step and have it prepared."""
        num_blocks = -(-shape.max_seq_len // self._tables.block_size)
        rows = staged.slot_mapping.view(len(self._tables.blocks), len(staged.positions))
        slots = [rows[group, :num_tokens] for group in range(len(self._tables.blocks))]
        tables = [t[:, :num_blocks].index_select(0, staged.rows) for t in self._tables.blocks]
        views = [CacheView(tables[plan.group], slots[plan.group]) for plan in self._tables.plans]
        for plan, view in zip(self._tables.plans, views, strict=True):
            view.settled = True  # the step's tokens are gathered behind it
            view.prepared = plan.prepare(shape, view)
        return views


def _shape(staged: StagedInputs, max_query_len: int, max_seq_len: int) -> StepShape:
    starts, lengths = staged.query_start_loc, staged.seq_lens
    return StepShape(len(staged.rows), starts, lengths, max_query_len, max_seq_len)
