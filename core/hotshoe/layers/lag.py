"""States of sequences where drafts are verified: a state never takes what may be refused.

The operation is called twice. The first call takes what is known: the drafts that were accepted
last, then the step's own tokens. The second goes on from there with this step's drafts, and leaves
its states in blocks that nobody reads. The inputs of drafts stay in the block of the state behind
which they come; whatever is accepted of them is taken from there by the next step's first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hotshoe.layers.cache import Prepare
from hotshoe.slots import CacheView, StepShape

Indexes = npt.NDArray[np.int64]


class Operation(Protocol):
    """An operation over states, with its weights: maps inputs to outputs of as many tokens."""

    def __call__(self, projected: Tensor, prepared: Any) -> Tensor:
        """Compute tokens; see `StateSpaceOp`."""
        ...


@dataclass(frozen=True, slots=True)
class Lag:
    """A step of t tokens, d of them drafts, behind which a accepted drafts are taken again.

    Attributes:
        known: What the operation has prepared for the first call.
        drafts: Likewise for the second; None where no sequence has drafts.
        again: Blocks and places [a] of inputs that were kept.
        taken: [a + t - d] what the first call takes, of kept inputs and then those of the step.
        drafted: [d] places of the drafts in the step.
        kept: Blocks and places [d] where their inputs are kept.
        out: [t] places of the step's tokens among the results of both calls.
    """

    known: Any
    drafts: Any
    again: tuple[Tensor, Tensor]
    taken: Tensor
    drafted: Tensor
    kept: tuple[Tensor, Tensor]
    out: Tensor

    def run(self, projected: Tensor, inputs: Tensor, known: Operation, drafts: Operation) -> Tensor:
        """Compute a step.

        Args:
            projected: [t, ...].
            inputs: [blocks, most drafts, ...] those that are kept.
            known, drafts: The operation, as it was made for either call.
        """
        found = known(torch.cat((inputs[self.again], projected))[self.taken], self.known)
        if self.drafts is None:
            return found[self.out]
        own = projected[self.drafted]
        inputs[self.kept] = own
        return torch.cat((found, drafts(own, self.drafts)))[self.out]


def plan_lag(
    shape: StepShape,
    view: CacheView,
    places: tuple[int, bool, int],
    known: Prepare,
    drafts: Prepare,
) -> Lag:
    """Plan a step with drafts, or behind accepted ones, once for all layers of a view.

    Args:
        shape: With `host_lens` and `host_drafts`.
        places: Tokens of a block; whether a sequence has one state alone, in its first column; the
            block that nobody reads.
        known, drafts: How the operation prepares either call.
    """
    assert shape.host_lens is not None and shape.host_drafts is not None
    (size, single, null), device = places, view.block_table.device
    every = (np.array(values, np.int64) for values in (*shape.host_lens, *shape.host_drafts))
    counts, lens, accepted, drafted = every
    own, ends = counts - drafted, lens - drafted
    first = np.stack((accepted, own), 1).ravel()  # kept inputs and tokens, row by row
    starts = np.cumsum(counts) - counts
    begins = np.stack((np.cumsum(accepted) - accepted, accepted.sum() + starts), 1).ravel()
    again, later = _behind(accepted), _behind(drafted)
    offsets = np.cumsum(first) - first
    made = np.concatenate([_spread(offsets[1::2], own), first.sum() + np.arange(drafted.sum())])
    tokens = np.concatenate([_spread(starts, own), _spread(starts + own, drafted)])
    out = np.empty(len(tokens), np.int64)
    out[tokens] = made

    def placed(array: Indexes) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    def blocks(behind: Indexes, repeats: Indexes) -> Tensor:
        """Return, as often as told, the block of each sequence's state behind so many tokens."""
        columns = np.zeros_like(behind) if single else np.maximum(behind - 1, 0) // size
        rows = np.arange(len(behind))
        at = placed(np.repeat(rows, repeats)), placed(np.repeat(columns, repeats))
        return view.block_table[at].long()

    prepared = None
    if len(later):
        rows = np.flatnonzero(drafted)
        heads = blocks(ends, (drafted > 0).astype(np.int64))[:, None]
        behind = heads.new_full((len(rows), -(-int(drafted.max()) // size)), null)
        table = torch.cat((heads, behind), 1).to(view.block_table.dtype)
        prepared = _prepare(drafts, drafted[rows], drafted[rows] + size, table, view)
    return Lag(
        _prepare(known, accepted + own, ends, view.block_table, view),
        prepared,
        (blocks(ends - own - accepted, accepted), placed(again)),
        placed(_spread(begins, first)),
        placed(_spread(starts + own, drafted)),
        (blocks(ends, drafted), placed(later)),
        placed(out),
    )


def _behind(counts: Indexes) -> Indexes:
    """Return 0, 1, ... for each count."""
    return _spread(np.zeros_like(counts), counts)


def _spread(begins: Indexes, counts: Indexes) -> Indexes:
    """Return each begin and the numbers behind it, as many as its count says."""
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before, counts) + np.arange(counts.sum())


def _prepare(
    prepare: Prepare, counts: Indexes, lens: Indexes, table: Tensor, view: CacheView
) -> Any:
    """Let an operation prepare a call over sequences of these tokens."""
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    lists: tuple[Sequence[int], Sequence[int]] = (counts.tolist(), lens.tolist())
    device = table.device
    shape = StepShape(
        len(counts),
        torch.from_numpy(starts).to(device, non_blocking=True),
        torch.from_numpy(lens.astype(np.int32)).to(device, non_blocking=True),
        int(counts.max()),
        int(lens.max()),
        lists,
    )
    return prepare(shape, CacheView(table, view.slot_mapping))
