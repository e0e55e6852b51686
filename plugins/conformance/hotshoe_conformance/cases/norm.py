"""Cases of slots `rms_norm` and `add_rms_norm`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import AddNormSpec, KVLayout, NormSpec
from hotshoe_conformance.cases.base import (
    DTYPES,
    FAR,
    Cost,
    Setup,
    Suite,
    compared,
    in_dtype,
    normal,
    reference,
    vary,
)
from hotshoe_conformance.cases.quant import ACTIVATIONS, plain, rounding, spoil
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Close, Exact, Expected


@dataclass(frozen=True, slots=True)
class Rows:
    """`scale` is the spread of the values; large ones overflow where squares are kept short.

    `nan` puts NaN into one row, and `before` rows that are not compared come first.
    """

    count: int
    scale: float = 1.0
    nan: bool = False
    before: int = 0


VARIATIONS: tuple[dict[str, Any], ...] = (
    {"weight_offset": 1.0},
    {"eps": 1e-2},
    {"hidden_size": 1},
    {"hidden_size": 37},
    {"hidden_size": 4096},
    {"hidden_size": 7168},
    *({"quant": quant} for quant in ACTIVATIONS),
)
SHAPES = (Rows(0), Rows(1), Rows(2), Rows(33), Rows(5, 1e-4), Rows(5, 200.0), Rows(2048))


def _grid(base: Any, variations: Sequence[Mapping[str, Any]]) -> list[Setup]:
    specs = [Setup(spec, Rows(5), spec.hidden_size < 1000) for spec in vary(base, variations)]
    shapes = [Setup(in_dtype(base, d), s, s.count < 100) for d in DTYPES for s in SHAPES]
    results = vary(base, [{"quant": quant} for quant in ACTIVATIONS])
    nan = [Setup(spec, Rows(3, nan=True), True) for spec in results]
    far = replace(base, hidden_size=4096, dtype="bfloat16")
    tensors = 3 if isinstance(base, AddNormSpec) else 2
    shape = Rows(3, before=-(-FAR // far.hidden_size))
    return [*specs, *shapes, *nan, Setup(far, shape, bytes=2 * tensors * FAR)]


def _draw(base: Any, rng: random.Random) -> Setup:
    size = rng.choice((rng.randrange(1, 600), 64 * rng.randrange(1, 40)))
    eps = rng.choice((1e-6, 1e-5))
    spec = replace(base, hidden_size=size, eps=eps, weight_offset=rng.choice((0.0, 1.0)))
    return Setup(in_dtype(spec, rng.choice(DTYPES)), Rows(rng.randrange(1, 70)))


@dataclass(slots=True)
class NormProblem:
    """One norm, with or without the residual."""

    spec: Any
    slot: str
    x: Tensor
    weight: Tensor
    residual: Tensor | None
    before: int

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        x, weight = place.behind(self.x, self.before), place(self.weight)
        if self.residual is None:
            return compared(self.before, {"y": plain(op(x, weight), self.spec.quant), "x": x})
        residual = place.behind(self.residual, self.before, written=True)
        y, total = op(x, residual, weight)
        return compared(self.before, {"y": plain(y, self.spec.quant), "residual": total})

    def expected(self) -> Mapping[str, Expected]:
        op = reference(self.slot, replace(in_dtype(self.spec, "float32"), quant=None))
        dtype, weight = self.spec.dtype, self.weight.float()
        nan = self.x.isnan()
        if self.residual is None:
            return {"y": self._close(op(self.x.float(), weight)), "x": Exact(self.x)}
        y, total = op(self.x.float(), self.residual.float(), weight)
        added = self.residual.float().abs() + abs(self.spec.residual_scale) * self.x.float().abs()
        # The norm may be taken of the sum before or after it is rounded.
        scale = (y.abs().amax(-1, keepdim=True)) if y.numel() else y
        return {
            "y": self._close(y, 16 * scale),
            "residual": Close(total, dtype, 16 * added, nan=nan),
        }

    def _close(self, y: Tensor, magnitude: Tensor | None = None) -> Close:
        quant, dtype = self.spec.quant, self.spec.dtype
        nan = self.x.isnan().any(1, keepdim=True)
        if quant is None:
            return Close(y, dtype, magnitude, nan=nan)
        return Close(y, "float32", magnitude, rounding(y, quant), dtype, nan)

    def alone(self) -> tuple[NormProblem, slice]:
        at = slice(len(self.x) // 2, len(self.x) // 2 + 1)
        residual = None if self.residual is None else self.residual[at]
        return replace(self, x=self.x[at], residual=residual, before=0), at

    def cost(self) -> Cost:
        tensors = 2 if self.residual is None else 4
        return Cost(tensors * self.x.nbytes, 4 * self.x.numel())

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        x, weight = place(self.x), place(self.weight)
        if self.residual is None:
            return lambda: op(x, weight)
        residual = place(self.residual)
        return lambda: op(x, residual, weight)


def _problem(slot: str, setup: Setup, source: torch.Generator) -> NormProblem:
    spec, rows = setup.spec, setup.shape
    size = (rows.count, spec.hidden_size)
    x = normal(size, spec.dtype, source, rows.scale)
    if rows.nan:
        spoil(x)
    residual = normal(size, spec.dtype, source) if slot == "add_rms_norm" else None
    weight = normal((spec.hidden_size,), spec.dtype, source)
    return NormProblem(spec, slot, x, weight, residual, rows.before)


def _suite(slot: str, base: Any, extra: Sequence[Mapping[str, Any]] = ()) -> Suite:
    def grid(layouts: Sequence[KVLayout]) -> list[Setup]:
        return _grid(base, (*VARIATIONS, *extra))

    def draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
        return _draw(base, rng)

    def problem(setup: Setup, source: torch.Generator) -> NormProblem:
        return _problem(slot, setup, source)

    def bench(layouts: Sequence[KVLayout]) -> list[Setup]:
        wide = replace(base, hidden_size=4096)
        return [Setup(in_dtype(wide, d), Rows(n)) for d in DTYPES[:2] for n in (1, 1024)]

    return Suite(slot, grid, draw, problem, bench)


SUITE = _suite("rms_norm", NormSpec(64, 1e-6, "float32"))
ADD_SUITE = _suite("add_rms_norm", AddNormSpec(64, 1e-6, "float32"), ({"residual_scale": 0.22},))
