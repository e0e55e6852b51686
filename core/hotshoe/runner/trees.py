"""Steps whose drafts are trees: their rows, and where a head goes on behind them.

The nodes of a tree take places of the token table and of the cache one behind the other, while the
position of each is its depth. Several nodes have one position. So what was sampled behind them
meets in one place of the token table, and the next plan brings the tokens of the path again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch import Tensor

from hotshoe.runner.ahead import Ahead, Samples
from hotshoe.runner.rows import Indexes, Ints, Puts, Rows, StepInputs
from hotshoe.sampling.rows import place
from hotshoe.types import StepPlan
from hotshoe.types.trees import ancestors_of, depths_of


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree with its root in front, n = nodes + 1 entries each.

    Attributes:
        depths: [n], 0 for the root.
        parents: [n] entries; the root's is itself.
        lines: [n, most] entries: each entry's ancestors, itself repeated.
        ancestors: [n - 1] masks of `ancestors_of`, of nodes.
    """

    depths: Ints
    parents: Indexes
    lines: Indexes
    ancestors: Indexes

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, parents: tuple[int, ...]) -> Shape:
        """Work out a shape, once."""
        up = np.array([0, *(parent + 1 for parent in parents)], np.int64)
        lines = [np.arange(len(up))]
        for _ in range(max(depths_of(parents), default=0)):
            lines.append(up[lines[-1]])
        masks = np.array(ancestors_of(parents), np.uint64).view(np.int64)
        depths = np.array([0, *depths_of(parents)], np.int32)
        return cls(depths, up, np.stack(lines, 1), masks)


def without_nodes(inputs: StepInputs) -> StepInputs:
    """Return a step as one with trees, none of which has a node."""
    counts = np.zeros(len(inputs.rows), np.int32)
    return replace(inputs, tree=(counts, np.zeros(len(inputs.positions), np.int64)))


class TreeRows(Rows):
    """See `Rows`."""

    def advance(self, plan: StepPlan) -> StepInputs:
        for row, (lost, _) in plan.taken.items():
            self.num_computed[row] -= lost
        return super().advance(plan)

    def _token_puts(self, plan: StepPlan) -> Puts:
        puts = super()._token_puts(plan)
        if not plan.taken:
            return puts
        index, values = [puts.index], [puts.values]
        for row, (_, tokens) in plan.taken.items():
            first = row * self.width + int(self.num_tokens[row]) - len(tokens)
            index.append(np.arange(first, first + len(tokens), dtype=np.int64))
            values.append(np.array(tokens, np.int32))
        return Puts(np.concatenate(index), np.concatenate(values))

    def _with_drafts(self, plan: StepPlan, inputs: StepInputs) -> StepInputs:
        inputs = super()._with_drafts(plan, inputs)
        if not plan.parents:
            return inputs
        positions, lengths = inputs.positions.copy(), inputs.sample_lens.copy()
        counts = np.zeros(len(inputs.rows), np.int32)
        ancestors = np.zeros(len(positions), np.int64)
        first_sample = dict(zip(*np.unique(inputs.sample_rows, return_index=True), strict=True))
        for at in np.flatnonzero(np.isin(inputs.rows, list(plan.parents))):
            row = int(inputs.rows[at])
            shape = Shape.of(tuple(plan.parents[row]))
            counts[at] = count = len(shape.ancestors)
            end, sample = int(inputs.query_start_loc[at + 1]), int(first_sample[row])
            root = end - count - 1
            positions[root:end] = positions[root] + shape.depths
            ancestors[root + 1 : end] = shape.ancestors
            lengths[sample : sample + count + 1] = lengths[sample] + shape.depths
        tree = (counts, ancestors)
        return replace(inputs, positions=positions, sample_lens=lengths, tree=tree)


class Accepted(NamedTuple):
    """The end of the accepted path of each row that samples, [r] int64 each.

    Attributes:
        first, last: The samples behind the root and behind the end.
        depth: Of the end; 0 for the root.
        line: [r, most] the samples of the end and its ancestors, the root's repeated.
    """

    first: Tensor
    last: Tensor
    depth: Tensor
    line: Tensor


class TreeAhead(Ahead):
    """See `Ahead`. Its head guesses all tokens of a row at once, as `TreeHead` says."""

    _parents: Mapping[int, Sequence[int]]
    _drafts: Mapping[int, Sequence[int]]

    def begin(self, plan: StepPlan) -> None:
        super().begin(plan)
        self._parents = plan.parents
        self._drafts = dict(zip(plan.draft_rows, plan.drafts, strict=True))

    def _last(
        self, samples: Samples, verified: Tensor | None, sampled: Tensor
    ) -> tuple[Tensor, Tensor]:
        if not self._parents:
            return super()._last(samples, verified, sampled)
        path = self._accepted(samples, sampled)
        device = sampled.device
        tokens, positions = place(samples.tokens, device), place(samples.positions, device)
        return tokens + path.last - path.first, positions + path.depth

    def _accepted(self, samples: Samples, sampled: Tensor) -> Accepted:
        """Find the last entry of each row's tree whose ancestors were all sampled."""
        host = self._trees(samples)
        tokens, parents, lines, depths, at = (place(array, sampled.device) for array in host)
        agreed = (sampled[parents] == tokens) | (depths == 0)
        passed = agreed[lines].all(1) * (depths + 1)
        entry = passed[at].argmax(1)
        own = at.gather(1, entry[:, None])[:, 0]
        return Accepted(at[:, 0], own, depths[own], lines[own])

    def _trees(
        self, samples: Samples
    ) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], ...]:
        """Return, of all samples [s], the token of each and the sample of its parent, those of its
        ancestors [s, most], and its depth; then `Samples.at`."""
        tokens, parents, lines, depths = list[int](), [], [], []
        for row, first in zip(samples.rows.tolist(), samples.at[:, 0].tolist(), strict=True):
            drafts = self._drafts.get(row, ())
            shape = Shape.of(tuple(self._parents.get(row, range(-1, len(drafts) - 1))))
            tokens += [-1, *drafts]
            parents.append(first + shape.parents)
            lines.append(first + shape.lines)
            depths.append(shape.depths)
        most = max(line.shape[1] for line in lines)
        filled = [np.pad(line, ((0, 0), (0, most - line.shape[1])), "edge") for line in lines]
        return (
            np.array(tokens, np.int64),
            np.concatenate(parents),
            np.concatenate(filled),
            np.concatenate(depths).astype(np.int64),
            samples.at.astype(np.int64),
        )
