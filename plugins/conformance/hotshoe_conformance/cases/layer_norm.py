"""Cases of slot `layer_norm`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, LayerNormSpec
from hotshoe_conformance.cases.base import (
    DTYPES,
    Cost,
    Setup,
    Suite,
    in_dtype,
    normal,
    reference,
    vary,
)
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Close, Exact, Expected


@dataclass(frozen=True, slots=True)
class Rows:
    """`scale` is the spread of the values, `mean` what they lie around; `nan` spoils one row."""

    count: int
    scale: float = 1.0
    mean: float = 0.0
    nan: bool = False


SLOT = "layer_norm"
BASE = LayerNormSpec(64, 1e-5, "float32")
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"bias": False},
    {"eps": 1e-2},
    {"hidden_size": 2},
    {"hidden_size": 37},
    {"hidden_size": 4096},
    {"hidden_size": 7168},
)
SHAPES = (Rows(0), Rows(1), Rows(2), Rows(33), Rows(5, 1e-4), Rows(5, 200.0), Rows(5, 1.0, 30.0))


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [Setup(spec, Rows(5), spec.hidden_size < 1000) for spec in vary(BASE, VARIATIONS)]
    shapes = [Setup(in_dtype(BASE, d), s, True) for d in DTYPES for s in SHAPES]
    nan = [Setup(in_dtype(BASE, d), Rows(3, nan=True), True) for d in DTYPES]
    return [*specs, *shapes, *nan, *(Setup(in_dtype(BASE, d), Rows(2048)) for d in DTYPES)]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    size = rng.choice((rng.randrange(2, 600), 64 * rng.randrange(1, 40)))
    eps = rng.choice((1e-6, 1e-5))
    spec = LayerNormSpec(size, eps, rng.choice(DTYPES), rng.random() < 0.5)
    return Setup(spec, Rows(rng.randrange(1, 70)))


@dataclass(slots=True)
class LayerNormProblem:
    """One norm."""

    spec: LayerNormSpec
    x: Tensor
    weight: Tensor
    bias: Tensor | None

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        x = place(self.x)
        bias = None if self.bias is None else place(self.bias)
        return {"y": op(x, place(self.weight), bias), "x": x}

    def expected(self) -> Mapping[str, Expected]:
        op = reference(SLOT, in_dtype(self.spec, "float32"))
        bias = None if self.bias is None else self.bias.float()
        y = op(self.x.float(), self.weight.float(), bias)
        # Numbers that the mean is taken from, and the bias, may each be rounded.
        wide = self.x.double()
        around = wide - wide.mean(-1, keepdim=True)
        spread = (around.square().mean(-1, keepdim=True) + self.spec.eps).sqrt()
        magnitude = wide.abs().amax(-1, keepdim=True) / spread * self.weight.double().abs()
        magnitude = magnitude + (0.0 if bias is None else bias.double().abs())
        nan = self.x.isnan().any(1, keepdim=True)
        return {"y": Close(y, self.spec.dtype, magnitude.float(), nan=nan), "x": Exact(self.x)}

    def alone(self) -> tuple[LayerNormProblem, slice]:
        at = slice(len(self.x) // 2, len(self.x) // 2 + 1)
        return replace(self, x=self.x[at]), at

    def cost(self) -> Cost:
        return Cost(2 * self.x.nbytes, 6 * self.x.numel())

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        x, weight = place(self.x), place(self.weight)
        bias = None if self.bias is None else place(self.bias)
        return lambda: op(x, weight, bias)


def _problem(setup: Setup, source: torch.Generator) -> LayerNormProblem:
    spec, rows = setup.spec, setup.shape
    size = (spec.hidden_size,)
    x = normal((rows.count, *size), "float32", source, rows.scale) + rows.mean
    x = x.to(getattr(torch, spec.dtype))
    if rows.nan:
        x[1, 0] = float("nan")
    weight = normal(size, spec.dtype, source)
    return LayerNormProblem(
        spec, x, weight, normal(size, spec.dtype, source) if spec.bias else None
    )


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    wide = replace(BASE, hidden_size=4096)
    return [Setup(in_dtype(wide, d), Rows(n)) for d in DTYPES[:2] for n in (1, 1024)]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
