"""Shapes of trees, and the paths through them, against a walk from node to node."""

import random

import pytest

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.types.trees import (
    MOST_NODES,
    ROOT,
    ancestors_of,
    depths_of,
    num_in_place,
    parse_tree,
    sampled_path,
    token_path,
)

TREE = "[(1,), (0, 1), (0,), (0, 0), (1, 0), (0, 0, 2), (0, 0, 0)]"


def test_the_chain_of_likeliest_tokens_comes_first() -> None:
    tree = parse_tree(TREE)
    assert tree == parse_tree([[1], [0, 1], [0], [0, 0], [1, 0], [0, 0, 2], [0, 0, 0]])
    assert tree.paths == ((0,), (0, 0), (0, 0, 0), (1,), (0, 1), (1, 0), (0, 0, 2))
    assert tree.parents == (ROOT, 0, 1, ROOT, 0, 3, 1)
    assert (tree.depth, tree.chain) == (3, 3)
    assert [tree.choices(depth) for depth in range(3)] == [2, 2, 3]
    assert depths_of(tree.parents) == [1, 2, 3, 1, 2, 2, 3]
    assert ancestors_of(tree.parents) == [1, 3, 7, 8, 17, 40, 67]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[(0,", "is no list of tuples"),
        ("[open('x')]", "is no list of tuples"),
        ("7", "must list 1 to 64 nodes"),
        ([], "must list 1 to 64 nodes"),
        ([[n] for n in range(MOST_NODES + 1)], "must list 1 to 64 nodes"),
        ([[0], 1], r"node is a tuple of choices .* not 1"),
        ([[0], []], r"node is a tuple of choices .* not \[\]"),
        ([[0], [True]], "node is a tuple of choices"),
        ([[-1]], "choices from 0 to 63"),
        ([[64]], "choices from 0 to 63"),
        ([[0], [1, 0]], r"has node \(1, 0\), but not its parent \(1,\)"),
        ([[0], [0]], "lists a node twice"),
    ],
)
def test_what_is_no_tree_is_refused(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"speculative_token_tree.* {message}|{message}"):
        EngineConfig("x", speculative_config={"method": "m", "speculative_token_tree": value})


def test_a_configuration_counts_the_nodes() -> None:
    options = {"method": "m", "speculative_token_tree": TREE}
    assert EngineConfig("x", speculative_config=options).num_speculative_tokens == 7
    EngineConfig("x", speculative_config=options | {"num_speculative_tokens": 7})
    with pytest.raises(ConfigError, match=r"num_speculative_tokens is 3, but .* has 7 nodes"):
        EngineConfig("x", speculative_config=options | {"num_speculative_tokens": 3})


def test_paths_are_those_of_a_walk() -> None:
    rng = random.Random(4)
    longest = 0
    for _ in range(300):
        parents = [rng.randrange(-1, n) if n else ROOT for n in range(rng.randrange(1, 20))]
        drafts, used = list[int](), set[tuple[int, int]]()
        for parent in parents:
            token = rng.choice([t for t in range(20) if (parent, t) not in used])
            used.add((parent, token))
            drafts.append(token)
        sampled = [rng.choice([*drafts, 3]) for _ in range(len(parents) + 1)]
        path, at = [], ROOT
        while children := [
            n for n, p in enumerate(parents) if p == at and drafts[n] == sampled[at + 1]
        ]:
            [at] = children
            path.append(at)
        assert sampled_path(parents, drafts, sampled) == path
        tokens = [drafts[node] for node in path]
        assert token_path(parents, drafts, tokens) == path
        assert token_path(parents, drafts, tokens[:1]) == path[:1]
        longest = max(longest, len(path))
    assert longest > 2
    assert [num_in_place(path) for path in ([], [0, 1, 4], [1], [0, 2], [0, 1, 2])] == [
        0,
        2,
        0,
        1,
        3,
    ]
