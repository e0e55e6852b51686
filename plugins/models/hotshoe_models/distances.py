"""Logits that depend on the distance of a key from its query, as tables by head and distance.

Source: Raffel et al. 2019, arXiv:1910.10683, section 2.1. See docs/decisions/0232.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, Section
from hotshoe.slots import renewed


class BiasRule(Protocol):
    """Says what is added to logits."""

    def table(self, ctx: BuildContext, num_heads: int) -> BiasTable:
        """Return the table of this rank's heads, whose weights it asks for."""
        ...


class BiasTable:
    """What slot `packed_attention` takes as a bias.

    Args:
        ctx: The build context.
        span: The largest distance with a bias of its own.
        num_heads: Of all ranks.

    Attributes:
        values: [heads of this rank, 2 * span + 1] float32, once it is loaded.
    """

    def __init__(self, ctx: BuildContext, span: int, num_heads: int) -> None:
        self.span, self._device = span, ctx.device
        self._own = ctx.split("attention heads", Section(num_heads)).within(0, num_heads)
        self.values = torch.empty(0)
        ctx.weight_bytes.append(lambda: self.values.nbytes)

    def fill(self, by_distance: Callable[[Tensor], Tensor]) -> None:
        """Compute the table from what makes [distances, num_heads] of [distances] int64."""
        rows = by_distance(torch.arange(-self.span, self.span + 1)).to(torch.float32)
        held = torch.cat([rows[:, own] for own in self._own], 1).T.contiguous()
        self.values = renewed(self.values, held.to(self._device))


@dataclass(frozen=True, slots=True)
class Buckets:
    """T5's rule: near distances have a row each, farther ones share rows by their logarithm.

    Attributes:
        name: Of the weight [count, num_heads].
        count: Rows. The second half is of keys behind the query.
        max_distance: From which on all share the last row.
    """

    name: str
    count: int = 32
    max_distance: int = 128

    def table(self, ctx: BuildContext, num_heads: int) -> BiasTable:
        """See `BiasRule`."""
        made = BiasTable(ctx, min(self.span, ctx.max_model_len - 1), num_heads)

        def take(rows: Tensor) -> None:
            made.fill(lambda distances: rows[self.rows(distances)])

        ctx.weights.expect(f"{self.name}.weight", (self.count, num_heads), take)
        return made

    @property
    def span(self) -> int:
        """The first distance that has the row of all farther ones."""
        rows = self.rows(torch.arange(self.max_distance + 1))
        return int((rows != rows[-1]).sum())

    def rows(self, distances: Tensor) -> Tensor:
        """Return the row of each distance, int64."""
        half = self.count // 2
        exact, far = half // 2, distances.abs()
        share = torch.log(far.clamp(min=exact).float() / exact) / math.log(
            self.max_distance / exact
        )
        shared = (exact + (share * (half - exact)).long()).clamp(max=half - 1)
        return torch.where(far < exact, far, shared) + half * (distances > 0)
