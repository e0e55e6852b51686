"""Magnitudes of adapters (DoRA): a factor for every output of an adapted product.

A plain adapter makes V = W + scale * b a of a matrix. With a magnitude m, every row of V is scaled
to the length m: y = factor * (x V^T) + bias, where factor = m / |row of V|. Rows of W are measured
when the first such adapter is loaded. They are read from the checkpoint. Where that is not what is
multiplied, the base operation multiplies unit vectors, and so tells W in whatever form it keeps it.
A product that quantizes x by its largest number leaves unit vectors as they are, and no others: all
that is asked of W is asked by unit vectors there. Products without such adapters have nothing of
this.

Source: Weight-decomposed low-rank adaptation, arXiv:2402.09353.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.slots import LinearOp, LinearSpec
from hotshoe.slots.reference.dtypes import torch_dtype

#: Unit vectors that are multiplied at once.
CHUNK = 256
#: Numbers of quantized x, of which the largest one is a multiple of any scale that is made of it.
EXACT = frozenset({"int8", "fp8_e4m3"})
#: Their length beside a bias, which then rounds little of W away; float16 has room for it.
UNIT = 256.0


@dataclass(frozen=True, slots=True)
class Base:
    """The product that is adapted.

    Attributes:
        op: Computes it, with this rank's part of W.
        spec: That `op` was asked for.
        sum: Adds up numbers of all ranks, in place, where each has some columns of W; else None.
        squares: Tells |row of W|^2 of this rank's part, on the host; None if nobody knows.
    """

    op: LinearOp
    spec: LinearSpec
    sum: Callable[[Tensor, Tensor], Tensor] | None
    squares: Callable[[], Tensor | None]


@dataclass(frozen=True, slots=True)
class Low:
    """What an adapter makes of some rows of W: this rank's part.

    Attributes:
        rows: Among those of all stacked matrices.
        a: [rank, in_features]. b: [num_rows, rank], scaled.
        magnitude: [num_rows], the lengths that rows of V are scaled to.
    """

    rows: slice
    a: Tensor
    b: Tensor
    magnitude: Tensor


@dataclass(frozen=True, slots=True)
class Gain:
    """y * factor + shift, [num_rows] float32 each: the shift keeps the bias out of it."""

    factor: Tensor
    shift: Tensor


def knows_units(spec: LinearSpec) -> bool:
    """Tell whether a product multiplies unit vectors exactly, as `Gains` needs."""
    x = spec.activation
    return x is None or (x.dynamic and x.symmetric and x.format in EXACT)


class Gains:
    """Factors and shifts of one product's outputs, for each adapter on the device.

    Args:
        base: The product.
        num_places: Of adapters on the device.
        device: Where it computes.
    """

    def __init__(self, base: Base, num_places: int, device: str) -> None:
        self._base, self._device = base, device
        # The last row is that of tokens without an adapter, whose place is -1.
        shape = (num_places + 1, base.spec.out_features)
        self._gain = torch.ones(shape, dtype=torch.float32, device=device)
        self._unit = UNIT if base.spec.bias else 1.0
        self._squares: Tensor | None = None
        self._shift = torch.zeros_like(self._gain) if base.spec.bias else None

    def __call__(self, y: Tensor, places: Tensor) -> None:
        """Scale y [num_tokens, out_features] in place; places: [num_tokens] int32, -1 for none."""
        rows = places.long()
        y.mul_(self._gain[rows])
        if self._shift is not None:
            y.add_(self._shift[rows])

    def measure(self, lows: Sequence[Low]) -> list[Gain]:
        """Return what magnitudes make of the rows of each matrix.

        |V|^2 is |W|^2 + b (2 W a^T + b a a^T), row by row, and only |W|^2 takes long.
        """
        bias = self._multiply(torch.zeros(1, self._base.spec.in_features, device=self._device))[0]
        if self._squares is None:
            self._squares = self._square(bias)
        total = self._squares.clone()
        for low in lows:
            a, b = (t.to(self._device, torch.float32) for t in (low.a, low.b))
            products = self._products(a, bias)[:, low.rows].T
            total[low.rows] += (b * (2 * products + b @ (a @ a.T))).sum(1)
        if self._base.sum is not None:
            self._base.sum(total, total)
        lengths = total.clamp_(min=0).sqrt_()
        return [self._gain_of(low, lengths[low.rows], bias[low.rows]) for low in lows]

    def settle(self) -> None:
        """Forget W, which has changed."""
        self._squares = None

    def _square(self, bias: Tensor) -> Tensor:
        """Return the sum of squares of this rank's part of every row of W."""
        if (known := self._base.squares()) is not None:
            return known.to(self._device)
        total = torch.zeros_like(bias)
        for _, columns in self._columns(bias):
            total += columns.square().sum(0)
        return total

    def _products(self, a: Tensor, bias: Tensor) -> Tensor:
        """Return a W^T, [rank, out_features], for a [rank, in_features]."""
        if self._base.spec.activation is None:
            return (self._multiply(a * self._unit) - bias) / self._unit
        found = a.new_zeros(len(a), len(bias))
        for own, columns in self._columns(bias):
            found += a[:, own] @ columns
        return found

    def _columns(self, bias: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield W^T some rows at a time, [at most CHUNK, out_features], and which they are."""
        size = self._base.spec.in_features
        for first in range(0, size, CHUNK):
            units = torch.zeros(min(CHUNK, size - first), size, device=self._device)
            units[:, first : first + CHUNK].fill_diagonal_(self._unit)
            own = slice(first, first + len(units))
            yield own, (self._multiply(units) - bias) / self._unit

    def _gain_of(self, low: Low, lengths: Tensor, bias: Tensor) -> Gain:
        wanted = low.magnitude.to(lengths)
        # A row of zeros gives zero, however long it should be.
        factor = torch.where(lengths > 0, wanted / lengths, 1.0)
        return Gain(factor.cpu(), (bias - factor * bias).cpu())

    def _multiply(self, x: Tensor) -> Tensor:
        """Return what the base makes of x, copied from memory that it may use again."""
        y: Tensor = self._base.op(x.to(torch_dtype(self._base.spec.dtype)))
        return y.to(torch.float32, copy=True)

    def put(self, place: int, rows: slice, gain: Gain | None) -> None:
        """Scale some outputs for the adapter in a place; None lets them be as they are."""
        self._gain[place, rows] = 1.0 if gain is None else gain.factor.to(self._device)
        if self._shift is not None:
            self._shift[place, rows] = 0.0 if gain is None else gain.shift.to(self._device)
