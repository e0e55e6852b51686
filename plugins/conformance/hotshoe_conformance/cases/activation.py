"""Cases of slot `gated_activation`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import GatedActivationSpec, KVLayout
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
    """`scale` is the spread of the values; large ones saturate the activation.

    `nan` puts NaN into one row, and `before` rows that are not compared come first.
    """

    count: int
    scale: float = 1.0
    nan: bool = False
    before: int = 0


SLOT = "gated_activation"
BASE = GatedActivationSpec(64, "silu", "float32")
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"activation": "gelu"},
    {"activation": "gelu_tanh"},
    {"size": 1},
    {"size": 37},
    {"size": 3072},
    *({"quant": quant} for quant in ACTIVATIONS),
)
SHAPES = (Rows(0), Rows(1), Rows(3), Rows(64), Rows(9, 30.0), Rows(9, 1e-3), Rows(2048))


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [Setup(spec, Rows(5), spec.size < 1000) for spec in vary(BASE, VARIATIONS)]
    shapes = [Setup(in_dtype(BASE, d), s, s.count < 100) for d in DTYPES for s in SHAPES]
    results = vary(BASE, [{"quant": quant} for quant in ACTIVATIONS])
    nan = [Setup(spec, Rows(3, nan=True), True) for spec in results]
    far = replace(BASE, size=3072, dtype="bfloat16")
    shape = Rows(3, before=-(-FAR // (2 * far.size)))
    return [*specs, *shapes, *nan, Setup(far, shape, bytes=3 * FAR)]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    kind = rng.choice(("silu", "gelu", "gelu_tanh"))
    spec = GatedActivationSpec(rng.randrange(1, 500), kind, rng.choice(DTYPES))
    return Setup(spec, Rows(rng.randrange(1, 50), rng.choice((0.1, 1.0, 8.0))))


@dataclass(slots=True)
class ActivationProblem:
    """Gate and up side by side."""

    spec: GatedActivationSpec
    x: Tensor
    before: int

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        x = place.behind(self.x, self.before)
        return compared(self.before, {"y": plain(op(x), self.spec.quant), "x": x})

    def expected(self) -> Mapping[str, Expected]:
        wide, quant = self.x.float(), self.spec.quant
        y = reference(SLOT, replace(in_dtype(self.spec, "float32"), quant=None))(wide)
        gate, up = wide.chunk(2, dim=-1)
        # Far to the left an activation is a small difference of large terms.
        magnitude = (gate * up).abs()
        close = Close(y, self.spec.dtype, magnitude, nan=y.isnan())
        if quant is not None:
            nan = y.isnan().any(1, keepdim=True)
            close = Close(y, "float32", magnitude, rounding(y, quant), self.spec.dtype, nan)
        return {"y": close, "x": Exact(self.x)}

    def alone(self) -> tuple[ActivationProblem, slice]:
        at = slice(len(self.x) // 2, len(self.x) // 2 + 1)
        return replace(self, x=self.x[at], before=0), at

    def cost(self) -> Cost:
        return Cost(self.x.nbytes * 3 // 2, 8 * self.x.numel())

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        x = place(self.x)
        return lambda: op(x)


def _problem(setup: Setup, source: torch.Generator) -> ActivationProblem:
    spec, rows = setup.spec, setup.shape
    x = normal((rows.count, 2 * spec.size), spec.dtype, source, rows.scale)
    if rows.nan:
        spoil(x)
    return ActivationProblem(spec, x, rows.before)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [replace(BASE, size=3072, dtype=dtype) for dtype in DTYPES[:2]]
    return [Setup(spec, Rows(n)) for spec in specs for n in (1, 1024)]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
