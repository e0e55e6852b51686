"""Steps whose drafts are trees: their rows, and where a head goes on behind them.

The nodes of a tree take places of the token table and of the cache one behind the other, while the
position of each is its depth. Several nodes have one position. So what was sampled behind them
meets in one place of the token table, and the next plan brings the tokens of the path again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from torch import Tensor

from hotshoe.layers import Changes, ForwardBatch
from hotshoe.runner.adapters import AdapterRows
from hotshoe.runner.ahead import Ahead, Samples
from hotshoe.runner.forward import Forward, StagedInputs
from hotshoe.runner.graphs import BATCH_SIZES, Recordings
from hotshoe.runner.limits import RunnerLimits
from hotshoe.runner.padding import padding_inputs
from hotshoe.runner.rows import Indexes, Ints, Puts, Rows, StepInputs
from hotshoe.sampling.rows import place
from hotshoe.types import StepPlan
from hotshoe.types.trees import ancestors_of, depths_of

#: Tokens of the largest step with trees that is recorded as a whole; a device takes longer than its
#: host for more.
TOKENS = 128
#: Of a step without trees, as `StepInputs.tree`.
NO_NODES = np.zeros(0, np.int32), np.zeros(0, np.int64)


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


class RecordedTrees:
    """Recordings of whole steps with trees: some requests, and the tokens that these may have.

    A request has a root, the nodes of its tree, and accepted nodes that are computed again, no more
    than the tree is deep. A step has fewer tokens; those behind them are of one more request that
    nobody sent, and requests between have no tokens.

    Args:
        limits: With a tree.
        adapters: Of rows; None for none.
        changes: What they may change in these steps.
    """

    def __init__(
        self, limits: RunnerLimits, adapters: AdapterRows | None, changes: Changes
    ) -> None:
        self._adapters, self._changes = adapters, changes
        tree, most = limits.tree, min(TOKENS, max(limits.piece_sizes, default=0))
        assert tree is not None
        self._each = 1 + len(tree.paths) + tree.depth
        counts = [n for n in BATCH_SIZES if n <= limits.max_num_seqs and n * self._each <= most]
        self.recordings = Recordings([n * self._each for n in counts])
        self._row, self._block_size = limits.max_num_seqs, limits.block_size
        self._slots: Ints = np.array(limits.null_blocks, np.int32) * limits.block_size

    def nobody(self, size: int) -> StepInputs:
        """Return a step of so many tokens to record."""
        return self.padded(without_nodes(self._nobodys(1)), size)

    def found(
        self, inputs: StepInputs, forward: Forward
    ) -> tuple[StepInputs, Callable[[StepInputs, StagedInputs], tuple[Tensor, None]]] | None:
        """Return a step with trees as a recording holds it, and `replay`; None where none does."""
        size = self.recordings.ready(max(len(inputs.positions), len(inputs.rows) * self._each))
        if size is None:
            return None
        if self._adapters is not None and self._changes:
            self._adapters.pad(size, self._changes)
        return self.padded(inputs, size), partial(self.replay, forward, size)

    def padded(self, inputs: StepInputs, size: int) -> StepInputs:
        """Fill a step with trees up to a recorded size."""
        assert inputs.tree is not None
        (counts, lines), rest = inputs.tree, self._nobodys(size - len(inputs.positions))
        none = np.zeros(size // self._each + 1 - len(counts), np.int32)
        ends, lengths = none + inputs.query_start_loc[-1], none + 1
        ends[-1], lengths[-1] = size, max(1, len(rest.positions))
        return replace(
            inputs,
            rows=np.append(inputs.rows, none + self._row),
            query_start_loc=np.append(inputs.query_start_loc, ends),
            seq_lens=np.append(inputs.seq_lens, lengths),
            positions=np.append(inputs.positions, rest.positions),
            token_index=np.append(inputs.token_index, rest.token_index),
            slot_mapping=np.append(inputs.slot_mapping, rest.slot_mapping, 1),
            tree=(np.append(counts, none), np.append(lines, np.zeros_like(rest.token_index))),
        )

    def replay(
        self, forward: Forward, size: int, inputs: StepInputs, staged: StagedInputs
    ) -> tuple[Tensor, None]:
        """Repeat a step and return its logits, for who samples.

        Args:
            forward: Has a head, which gets the states of the step's own tokens.
            size: Of the recording.
            inputs: Of the step alone.
            staged: Filled up.
        """
        assert forward.ahead is not None
        hidden, own = self.recordings.replay(size), slice(inputs.num_tokens)
        batch = ForwardBatch(staged.positions[own], *forward.read(inputs, trimmed(staged, inputs)))
        forward.ahead.keep(hidden[own], batch)
        return forward.logits(hidden[staged.sample_at]), None

    def _nobodys(self, count: int) -> StepInputs:
        """Return a step of one request, which nobody sent, of so many tokens."""
        lengths = np.array([count], np.int32)
        return padding_inputs(lengths, self._row, self._slots, self._block_size)


def trimmed(staged: StagedInputs, inputs: StepInputs) -> StagedInputs:
    """Return a padded step's arrays of requests as those of the step alone."""
    own, tokens = slice(len(inputs.rows)), slice(inputs.num_tokens)
    return replace(
        staged,
        rows=staged.rows[own],
        query_start_loc=staged.query_start_loc[: len(inputs.rows) + 1],
        seq_lens=staged.seq_lens[own],
        node_counts=staged.node_counts[own],
        node_lines=staged.node_lines[tokens],
    )


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
