"""Verifies drafts: which of them are accepted, given what was sampled at every position.

A draft is a guess that is certain of itself, so exact rejection sampling would accept draft x with
probability p(x), and else sample from p without x, renormalized. To sample y from p, accept x where
y = x, and keep y otherwise does just that: P(y = x) = p(x), and y given y != x has the distribution
of the rest. So every position is sampled as if there were no drafts, with the random number that
belongs to it, and a request's tokens stay the same, seed by seed, with drafts and without.
Greedy rows are the case of a p that is certain, too.

Drafts may be a tree. Then the path goes on at the child that equals the sampled token, and ends
where there is none. Nodes of one depth have one random number, as they are in the same place of a
text, and at most one of them is on the path.

Source: speculative sampling, Chen et al. 2023, arXiv:2302.01318, theorem 1, for a proposal of one
token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hotshoe.types import StepPlan
from hotshoe.types.trees import sampled_path

NO_DRAFTS: Mapping[int, Sequence[int]] = MappingProxyType({})


class Branching(list[int]):
    """The nodes of a tree.

    Args:
        drafts, parents: Of each node, as in `StepPlan`.
    """

    def __init__(self, drafts: Sequence[int], parents: Sequence[int]) -> None:
        super().__init__(drafts)
        self.parents = parents

    def accepted(self, sampled: Sequence[int]) -> list[int]:
        """Return accepted drafts and the token behind them, given what was sampled behind the known
        tokens and behind each node."""
        path = sampled_path(self.parents, self, sampled)
        if path and sampled[path[-1] + 1] < 0:  # may lie behind the end; else it comes again
            path.pop()
        return [sampled[0], *(sampled[node + 1] for node in path)]


def branching(plan: StepPlan) -> dict[int, Sequence[int]]:
    """Return the drafts of each row of a plan that has trees."""
    return {
        row: Branching(drafts, plan.parents[row]) if row in plan.parents else drafts
        for row, drafts in zip(plan.draft_rows, plan.drafts, strict=True)
    }


def verify(
    rows: Sequence[int], sampled: Sequence[int], drafts: Mapping[int, Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Return each row once, and its accepted drafts with the token that was sampled after them.

    Args:
        rows: The row of each sample; one with k drafts comes k + 1 times in succession.
        sampled: What was sampled there; -1 where no token could be, which no draft equals.
            Behind accepted drafts it counts as not tried: the next step fails there, if any does.
        drafts: By row; others have none.
    """
    found: list[int] = []
    tokens: list[list[int]] = []
    at = 0
    while at < len(rows):
        proposed = drafts.get(rows[at], ())
        if isinstance(proposed, Branching):
            found.append(rows[at])
            end = at + len(proposed) + 1
            tokens.append(proposed.accepted(sampled[at:end]))
            at = end
            continue
        accepted = 0
        while accepted < len(proposed) and sampled[at + accepted] == proposed[accepted]:
            accepted += 1
        if accepted and sampled[at + accepted] < 0:  # may lie behind the end; else it comes again
            accepted -= 1
        found.append(rows[at])
        tokens.append(list(sampled[at : at + accepted + 1]))
        at += len(proposed) + 1
    return found, tokens
