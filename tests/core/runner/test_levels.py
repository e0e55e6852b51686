"""Levels of trees, and steps whose trees give way to paths."""

from types import SimpleNamespace

import numpy as np
import torch
from tests.core.runner.test_trees import PARENTS, begun

from hotshoe.models.base import LevelHead
from hotshoe.runner.ahead import Ahead, samples_of
from hotshoe.runner.levels import LevelAhead, ahead_of, levels_of
from hotshoe.runner.trees import TreeAhead
from hotshoe.types.trees import parse_tree

TREE = parse_tree("[(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 0, 2), (0, 0, 0)]")


def test_levels_compute_what_has_children() -> None:
    number = {path: node for node, path in enumerate(TREE.paths)}
    first, second, third = levels_of(TREE)
    assert [TREE.paths[n] for n in first.nodes] == [(0,), (1,)]
    assert first.parents.tolist() == [0, 0] and first.choices.tolist() == [0, 1]
    assert first.computed.tolist() == [0, 1] and (first.depth, first.first) == (1, 0)
    assert first.lines.tolist() == [0b1, 0b10]
    assert second.nodes.tolist() == sorted(number[p] for p in [(0, 0), (0, 1), (1, 0)])
    inner = [TREE.paths[second.nodes[at]] for at in second.computed]
    assert inner == [(0, 0), (1, 0)] and second.first == 2
    assert second.lines.tolist() == [0b101, 0b1010]
    assert third.parents.tolist() == [0, 1] and third.choices.tolist() == [0, 2]
    assert not len(third.computed) and third.depth == 3


def test_a_level_of_64_bits_is_a_signed_number() -> None:
    chain = parse_tree(str([(0,) * n for n in range(1, 65)]))
    assert levels_of(chain)[62].lines.tolist() == [(1 << 63) - 1]
    assert levels_of(chain)[63].first == 63


def test_trees_give_way_to_paths() -> None:
    _, inputs, plan = begun()
    ahead = LevelAhead.__new__(LevelAhead)
    ahead._parents, ahead._drafts = plan.parents, dict(enumerate(plan.drafts))
    step = ahead._straight(inputs, samples_of(inputs))
    deepest = [2, 2, 0]  # of the tree of row 0, of the chain of row 1, of nothing
    assert len(PARENTS) == 5
    assert step.counts.tolist() == [1 + n for n in deepest]
    assert step.lengths.tolist() == [6 + 2, 7 + 2, 10]
    assert step.positions.tolist() == [5, 6, 7, 6, 7, 8, 9]
    assert step.source.tolist() == [0, 0, 0, 6, 6, 6, 9]
    assert step.slots.tolist() == [0, 1, 2, 6, 7, 8, 9]
    assert step.roots.tolist() == [0, 3, 6]
    assert step.at.tolist() == [1, 2, 4, 5]
    assert step.row.tolist() == [0, 0, 1, 1] and step.depth.tolist() == [1, 2, 1, 2]
    assert step.positions.dtype == np.int32


def test_heads_say_how_trees_are_drafted() -> None:
    tables = SimpleNamespace(
        plans=[],
        blocks=[torch.zeros(3, 2, dtype=torch.int32)],
        null_slots=np.zeros(1, np.int32),
        tokens=torch.zeros(4, dtype=torch.int32),
    )
    head = SimpleNamespace(cache_layers=(), forward=len, guess=len)
    assert type(ahead_of(head, tables, None)) is Ahead
    assert type(ahead_of(head, tables, TREE)) is TreeAhead
    head.likeliest = max
    assert isinstance(head, LevelHead)
    assert type(ahead_of(head, tables, TREE)) is LevelAhead
