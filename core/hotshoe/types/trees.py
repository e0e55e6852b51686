"""Trees of drafts: their shape as a user writes it, and the path through one that was accepted.

A node is written as the choices that lead to it: (0, 1) is the second likeliest token behind the
likeliest one. Nodes are numbered so that a parent comes before its children, and the chain of
likeliest tokens before all others: the first nodes of a tree are a tree, and the first of all a
chain. The parent of a node that follows the known tokens is `ROOT`. Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from hotshoe.errors import ConfigError

#: The option.
TREE = "speculative_token_tree"
NAME = f"speculative_config.{TREE}"
#: What a node sees of others is a mask of so many bits.
MOST_NODES = 64
#: Choices at one place; heads compare that many.
MOST_CHOICES = 64
ROOT = -1


class NoTreesError(ConfigError):
    """A model, or a head, makes or takes chains of drafts alone; the message says why."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """The shape of a tree.

    Attributes:
        paths: The choices that lead to each node, in the order of nodes.
    """

    paths: tuple[tuple[int, ...], ...]

    @property
    def parents(self) -> tuple[int, ...]:
        """The parent of each node."""
        number = {path: node for node, path in enumerate(self.paths)}
        return tuple(number.get(path[:-1], ROOT) for path in self.paths)

    @property
    def depth(self) -> int:
        """Nodes of the longest path."""
        return max(map(len, self.paths))

    @property
    def chain(self) -> int:
        """Nodes of the chain of likeliest tokens, which come first."""
        return sum(1 for _ in takewhile(lambda path: not any(path), self.paths))

    def choices(self, depth: int) -> int:
        """Return how many tokens a head has to tell for the nodes of a depth, counted from 0."""
        return max(path[depth] + 1 for path in self.paths if len(path) == depth + 1)


def tree_of(options: Mapping[str, Any]) -> DraftTree | None:
    """Return the tree that options of speculation ask for, if they do.

    Raises:
        ConfigError: It is none, or another number of drafts is asked for as well.
    """
    if options.get(TREE) is None:
        return None
    tree, number = parse_tree(options[TREE]), options.get("num_speculative_tokens")
    if number not in (None, len(tree.paths)):
        raise ConfigError(
            f"speculative_config.num_speculative_tokens is {number}, but {TREE} has "
            f"{len(tree.paths)} nodes; leave one of them out"
        )
    return tree


def parse_tree(value: object) -> DraftTree:
    """Read a list of nodes, such as "[(0,), (1,), (0, 0)]"; JSON's lists mean the same.

    Raises:
        ConfigError: It is no tree of 1 to `MOST_NODES` nodes.
    """
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise ConfigError(f"{NAME} {value!r} is no list of tuples: {error}") from None
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MOST_NODES:
        raise ConfigError(
            f"{NAME} must list 1 to {MOST_NODES} nodes, such as [(0,), (1,), (0, 0)], not {value!r}"
        )
    nodes = [_node(entry) for entry in value]
    for node in nodes:
        if len(node) > 1 and node[:-1] not in nodes:
            raise ConfigError(f"{NAME} has node {node}, but not its parent {node[:-1]}; add that")
    if len(set(nodes)) < len(nodes):
        raise ConfigError(f"{NAME} lists a node twice: {value!r}")
    return DraftTree(tuple(sorted(nodes, key=lambda node: (any(node), len(node), node))))


def _node(entry: object) -> tuple[int, ...]:
    fits = isinstance(entry, list | tuple) and 1 <= len(entry) <= MOST_NODES
    if not fits or any(type(n) is not int or not 0 <= n < MOST_CHOICES for n in entry):  # type: ignore[attr-defined]
        raise ConfigError(
            f"{NAME}: a node is a tuple of choices from 0 to {MOST_CHOICES - 1}, such as (0, 1), "
            f"not {entry!r}"
        )
    return tuple(entry)  # type: ignore[arg-type]


def sampled_path(
    parents: Sequence[int], drafts: Sequence[int], sampled: Sequence[int]
) -> list[int]:
    """Return the nodes that sampling accepts, from the first to the last.

    Args:
        parents, drafts: Of each node; children of one node are different tokens.
        sampled: Behind the known tokens, then behind each node; -1 where no token could be.
    """
    path, at = list[int](), ROOT
    for node, parent in enumerate(parents):
        if parent == at and drafts[node] == sampled[at + 1]:
            path.append(node)
            at = node
    return path


def token_path(parents: Sequence[int], drafts: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Return the nodes that hold tokens that follow each other from the root."""
    path, at = list[int](), ROOT
    for node, parent in enumerate(parents):
        if len(path) < len(tokens) and parent == at and drafts[node] == tokens[len(path)]:
            path.append(node)
            at = node
    return path


def num_in_place(path: Sequence[int]) -> int:
    """Return how many nodes of a path lie where the tokens of a chain lie, before one that does
    not: their keys and values stay."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], enumerate(path)))


def depths_of(parents: Sequence[int]) -> list[int]:
    """Return each node's depth; 1 behind the known tokens."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent == ROOT else found[parent] + 1)
    return found


def ancestors_of(parents: Sequence[int]) -> list[int]:
    """Return a mask for each node: bit j stands for node j, set for itself and its ancestors."""
    found: list[int] = []
    for node, parent in enumerate(parents):
        found.append((0 if parent == ROOT else found[parent]) | 1 << node)
    return found
