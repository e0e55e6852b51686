"""Rows with trees, token by token, and where a head goes on behind what was sampled."""

import random

import numpy as np
import torch

from hotshoe.layers import Changes
from hotshoe.runner.ahead import Ahead, samples_of
from hotshoe.runner.limits import RunnerLimits
from hotshoe.runner.rows import StepInputs
from hotshoe.runner.trees import RecordedTrees, TreeAhead, TreeRows, without_nodes
from hotshoe.types import NewRow, SamplingParams, StepPlan
from hotshoe.types.trees import ROOT, ancestors_of, depths_of, parse_tree, sampled_path

PARENTS = [ROOT, 0, ROOT, 2, 0]
DRAFTS = [7, 8, 9, 8, 6]


def begun() -> tuple[TreeRows, StepInputs, StepPlan]:
    """Rows behind a step in which row 0 verifies a tree, row 1 a chain, and row 2 nothing."""
    rows = TreeRows(3, 60, 4)
    lengths = [5, 6, 9]
    plan = StepPlan(0, rows=[0, 1, 2], num_scheduled_tokens=lengths)
    plan.new_rows = [
        NewRow(row, list(range(n)), n, 0, [list(range(12))], SamplingParams(), 0)
        for row, n in enumerate(lengths)
    ]
    rows.advance(plan)
    plan = StepPlan(1, rows=[0, 1, 2], num_scheduled_tokens=[6, 3, 1])
    plan.draft_rows, plan.drafts = [0, 1], [DRAFTS, [3, 4]]
    plan.parents = {0: PARENTS}
    return rows, rows.advance(plan), plan


def test_positions_are_depths_and_places_are_numbers() -> None:
    _, inputs, _ = begun()
    assert inputs.positions.tolist() == [5, *(5 + d for d in depths_of(PARENTS)), 6, 7, 8, 9]
    assert (inputs.token_index % 61).tolist() == [5, 6, 7, 8, 9, 10, 6, 7, 8, 9]
    assert inputs.slot_mapping[0].tolist() == [5, 6, 7, 8, 9, 10, 6, 7, 8, 9]
    assert inputs.sample_lens.tolist() == [6, 7, 8, 7, 8, 8, 7, 8, 9, 10]
    assert inputs.sample_at.tolist() == list(range(10))
    assert inputs.tree is not None
    counts, ancestors = inputs.tree
    assert counts.tolist() == [5, 0, 0]
    assert ancestors.tolist() == [0, *ancestors_of(PARENTS), 0, 0, 0, 0]


def test_a_step_may_have_trees_of_no_nodes() -> None:
    _, inputs, _ = begun()
    tree = without_nodes(inputs).tree
    assert tree is not None and [array.tolist() for array in tree] == [[0] * 3, [0] * 10]


def test_accepted_nodes_that_lie_elsewhere_are_computed_again() -> None:
    rows, _, _ = begun()
    plan = StepPlan(2, rows=[0, 1], num_scheduled_tokens=[3, 1])
    plan.accepted_rows, plan.num_accepted = [0], [2]
    plan.taken = {0: (2, [9, 8, 5])}
    inputs = rows.advance(plan)
    assert inputs.tree is None
    assert inputs.positions.tolist() == [6, 7, 8, 7]
    assert dict(zip(inputs.tokens.index.tolist(), inputs.tokens.values.tolist(), strict=True)) == {
        6: 9,
        7: 8,
        8: 5,
    }
    assert inputs.sample_lens.tolist() == [9, 8]


def test_a_head_goes_on_behind_the_last_node_of_the_path() -> None:
    _, inputs, plan = begun()
    ahead = TreeAhead.__new__(TreeAhead)
    ahead._parents, ahead._drafts = plan.parents, dict(enumerate(plan.drafts))
    samples, rng, depths = samples_of(inputs), random.Random(1), set[int]()
    for _ in range(200):
        sampled = [rng.choice([3, 4, 6, 7, 8, 9]) for _ in range(10)]
        last, positions = ahead._last(samples, None, torch.tensor(sampled, dtype=torch.int32))
        path = sampled_path(PARENTS, DRAFTS, sampled[:6])
        chain = sampled_path([ROOT, 0], [3, 4], sampled[6:9])
        ends = [path[-1] + 1 if path else 0, len(chain)]
        assert last.tolist() == [ends[0], 6 + ends[1], 9]
        assert positions.tolist() == [5 + len(path), 6 + len(chain), 9]
        depths.add(len(path))
    assert depths == {0, 1, 2}
    assert isinstance(ahead, Ahead) and np.array_equal(samples.rows, [0, 1, 2])


def test_a_step_is_filled_up_to_a_recorded_size() -> None:
    """By requests without tokens, and one that has all tokens of nobody."""
    _, inputs, _ = begun()
    tree = parse_tree("[(0,), (0, 0), (0, 1), (1,), (1, 0)]")
    limits = RunnerLimits(8, 64, 4, 0, 99, (7,), piece_sizes=(32, 64, 100), tree=tree)
    trees, each = RecordedTrees(limits, None, Changes.NOTHING), 1 + 5 + 2
    assert trees.recordings.sizes == tuple(n * each for n in (1, 2, 4, 8))
    assert trees.found(inputs, None) is None, "nothing is recorded yet"
    for size in trees.recordings.sizes:
        trees.recordings.keep(size, lambda: torch.empty(0))
    tokens, size = len(inputs.positions), 4 * each
    assert (len(inputs.rows), tokens) == (3, 10)
    padded, _ = trees.found(inputs, None)
    assert padded.rows.tolist() == [*inputs.rows.tolist(), 8, 8]
    assert padded.query_start_loc.tolist() == [*inputs.query_start_loc.tolist(), tokens, size]
    assert padded.seq_lens.tolist() == [*inputs.seq_lens.tolist(), 1, size - tokens]
    assert padded.positions[tokens:].tolist() == list(range(size - tokens))
    assert set((padded.slot_mapping[0, tokens:] // 4).tolist()) == {7}
    counts, lines = padded.tree
    assert counts.tolist() == [*inputs.tree[0].tolist(), 0, 0]
    assert lines.tolist() == [*inputs.tree[1].tolist(), *[0] * (size - tokens)]
    nobody = trees.nobody(size)
    for name in ("rows", "query_start_loc", "seq_lens", "positions", "slot_mapping"):
        assert getattr(nobody, name).shape == getattr(padded, name).shape
