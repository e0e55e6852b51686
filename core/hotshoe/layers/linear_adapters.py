"""Adapters of linear layers: what they add to one product of stacked matrices.

Source: Low-rank adaptation, arXiv:2106.09685.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers.adapter_ranks import check_factors
from hotshoe.layers.adapters import AdapterTable, Changes, Factors
from hotshoe.layers.formats import Share
from hotshoe.layers.landing import Piece
from hotshoe.layers.magnitudes import Base, Gain, Gains, Low, knows_units
from hotshoe.slots import LoraOp, LoraSpec

if TYPE_CHECKING:
    from hotshoe.layers.context import BuildContext


class AdaptedLinear:
    """What adapters add to one product of stacked matrices: this rank's part.

    Args:
        ctx: The build context.
        table: Who has adapters.
        shares: Name, size and this rank's part of each matrix, in the order of y.
        in_features: Columns of the whole matrices.
        spec: The product's sizes on this rank.
        base: The product.
    """

    def __init__(
        self,
        ctx: BuildContext,
        table: AdapterTable,
        shares: Sequence[tuple[str, int, Share]],
        in_features: int,
        spec: LoraSpec,
        base: Base,
    ) -> None:
        self._op: LoraOp = ctx.selector.choose("lora", spec)
        self._table, self._shares, self._in_features = table, shares, in_features
        self._rank = spec.rank // len(shares)
        shape, place = (spec.max_adapters, spec.rank), (ctx.torch_dtype, ctx.device)
        self._a = torch.empty(*shape, spec.in_features, dtype=place[0], device=place[1])
        self._b = torch.empty(*shape, spec.out_features, dtype=place[0], device=place[1])
        table.device.write_later(self._a, self._b)
        self._base = base
        self._own_ranks: Tensor | None = None  # until a step has adapters
        self._gains: Gains | None = None  # until an adapter has magnitudes
        self.nbytes = self._a.nbytes + self._b.nbytes
        for index, (name, _, _) in enumerate(shares):
            table.layers[name] = (self, index)
        table.ranks.expect([name for name, _, _ in shares])

    def __call__(self, y: Tensor, x: Tensor) -> None:
        """Add to y [num_tokens, out_features], in place, what the step's adapters make of x."""
        if self._table.uses:
            use = self._table.uses[len(x)]
            own = y if y.dtype == x.dtype else x.new_zeros(y.shape)  # the slot has one type
            self._op(own, x, self._a, self._b, use.tokens._replace(ranks=self._ranks()))
            if own is not y:
                y += own
            if use.changes == Changes.APART and self._gains is not None:
                self._gains(y, use.tokens.places)

    def _ranks(self) -> Tensor:
        """Return this product's columns of the ranks in all places."""
        if self._own_ranks is None:
            self._own_ranks = self._table.ranks.of([name for name, _, _ in self._shares])
        return self._own_ranks

    def check(self, name: str, index: int, factors: Factors, max_rank: int) -> None:
        """Refuse factors of another shape.

        Raises:
            CheckpointError: They do not fit the matrix, or their rank is above the limit.
        """
        size = self._shares[index][1]
        if factors.whole is not None:
            raise CheckpointError(
                f"the adapter has a whole {name} (modules_to_save), which is served of embeddings "
                "and output matrices alone"
            )
        check_factors(name, factors, (self._in_features, size), max_rank)
        if factors.magnitude is None:
            return
        if factors.magnitude.shape != (size,):
            raise CheckpointError(
                f"the adapter's magnitudes of {name} have shape {list(factors.magnitude.shape)}, "
                f"but this model's matrix has {size} outputs; it was made for another model"
            )
        if not knows_units(self._base.spec):
            raise CheckpointError(
                f"the adapter has a magnitude (DoRA) of {name}, whose product quantizes its input "
                f"to {self._base.spec.activation}, by which the lengths of rows cannot be "
                "measured; choose a quantization of weights alone, or an adapter without magnitudes"
            )

    def host_bytes(self, index: int, factors: Factors) -> int:
        """Return the bytes that the host keeps of this rank's part: b has the rows of all stacked
        matrices. What has magnitudes is kept a second time, as it was."""
        rank, rows = len(factors.a), self._shares[index][2].num_rows
        numbers = rank * (self._a.shape[2] + self._b.shape[2])
        if factors.magnitude is None:
            return numbers * self._a.itemsize
        numbers += rank * (self._a.shape[2] + rows)
        return numbers * self._a.itemsize + 3 * rows * torch.float32.itemsize

    def own_part(self, index: int, factors: Factors) -> Factors:
        """Return copies of this rank's part of both factors, in the type of y; b is scaled."""
        share = self._shares[index][2]
        a = factors.a[:, share.columns]
        b = torch.cat([factors.b[rows] for rows in share.rows]).float() * factors.scale
        a, b = (t.to(self._a.dtype, copy=True) for t in (a, b))
        if factors.magnitude is None:
            return Factors(a, b)
        return Factors(a, b, torch.cat([factors.magnitude[rows] for rows in share.rows]).float())

    def measure(self, parts: Mapping[int, Factors]) -> dict[int, Gain]:
        """Return what the magnitudes of an adapter scale, by the index of the matrix.

        All ranks call this alike, as each may have some columns alone.
        """
        if self._gains is None:
            self._gains = Gains(self._base, len(self._a), str(self._a.device))
        lows = []
        for index, (a, b, magnitude, *_) in parts.items():
            assert magnitude is not None
            lows.append(Low(self._rows(index, len(b)), a, b, magnitude))
        return dict(zip(parts, self._gains.measure(lows), strict=True))

    def settle(self) -> None:
        """Forget the weights, which have changed."""
        if self._gains is not None:
            self._gains.settle()

    def _rows(self, index: int, count: int) -> slice:
        """Return where a matrix's first outputs lie among all."""
        before = sum(share.num_rows for _, _, share in self._shares[:index])
        return slice(before, before + count)

    def pieces(self, index: int, factors: Factors) -> Sequence[Piece]:
        """Return where the rows of one matrix's factors lie, and their numbers.

        Rows of b are those of all stacked matrices, with zeros for the others.
        """
        first, rank = index * self._rank, len(factors.a)
        b = factors.b.new_zeros(rank, self._b.shape[2])
        b[:, self._rows(index, len(factors.b))] = factors.b.T
        rows = slice(first, first + rank)
        targets = (held[:, rows].view(len(held), -1) for held in (self._a, self._b))
        return list(zip(targets, (factors.a.flatten(), b.flatten()), strict=True))

    def put(self, place: int, index: int, factors: Factors | None, gain: Gain | None) -> None:
        """Take what `pieces` does not have of one matrix: its magnitudes."""
        if self._gains is not None:
            size = self._shares[index][2].num_rows if gain is None else len(gain.factor)
            self._gains.put(place, self._rows(index, size), gain)


def adapted_linear(
    ctx: BuildContext,
    table: AdapterTable,
    shares: Sequence[tuple[str, int, Share]],
    in_features: int,
    base: Base,
) -> AdaptedLinear:
    """Register a linear layer, and return the operation that adds its adapters' part.

    Args:
        ctx: The build context.
        table, shares, in_features: See `AdaptedLinear`.
        base: The product.

    Raises:
        MemoryLimitError: All places of adapters together need more than the device has.
    """
    table.weights = ctx.weights
    limits = table.limits
    rank = limits.max_rank * len(shares)
    sizes = (base.spec.in_features, base.spec.out_features)
    parts = tuple(share.num_rows for _, _, share in shares)
    spec = LoraSpec(*sizes, rank, limits.max_adapters, ctx.dtype, parts)
    numbers = rank * sum(sizes)
    landing = table.land(numbers, ctx.torch_dtype, ctx.selector.judged.device)
    places = limits.max_adapters * numbers * ctx.torch_dtype.itemsize
    table.take(places + landing, ctx.selector.facts)
    layer = AdaptedLinear(ctx, table, shares, in_features, spec, base)
    ctx.weight_bytes.append(lambda: layer.nbytes + landing)
    return layer
