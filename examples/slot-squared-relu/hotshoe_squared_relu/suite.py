"""Conformance cases of slot `squared_relu`: inputs, the call, and the results in float32."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout
from hotshoe_conformance.cases.base import DTYPES, Setup, Suite, normal
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Close, Exact, Expected
from hotshoe_squared_relu.slot import SquaredReluSpec


@dataclass(frozen=True, slots=True)
class Rows:
    """How many there are."""

    count: int


@dataclass(slots=True)
class Problem:
    """One input."""

    spec: SquaredReluSpec
    x: Tensor

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        x = place(self.x)
        return {"y": op(x), "x": x}

    def expected(self) -> Mapping[str, Expected]:
        y = self.x.float().clamp(min=0).square()
        return {"y": Close(y, self.spec.dtype, y), "x": Exact(self.x)}

    def alone(self) -> tuple[Problem, slice]:
        at = slice(len(self.x) // 2, len(self.x) // 2 + 1)
        return Problem(self.spec, self.x[at]), at


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [SquaredReluSpec(size, dtype) for dtype in DTYPES for size in (1, 37, 256)]
    return [Setup(spec, Rows(count), quick=True) for spec in specs for count in (0, 1, 9)]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    return Setup(
        SquaredReluSpec(rng.randrange(1, 500), rng.choice(DTYPES)), Rows(rng.randrange(50))
    )


def _problem(setup: Setup, source: torch.Generator) -> Problem:
    shape = (setup.shape.count, setup.spec.size)
    return Problem(setup.spec, normal(shape, setup.spec.dtype, source))


SUITE = Suite("squared_relu", _grid, _draw, _problem)
