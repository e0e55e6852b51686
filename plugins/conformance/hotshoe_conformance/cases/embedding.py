"""Cases of slot `embedding`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import EmbeddingSpec, KVLayout
from hotshoe_conformance.cases.base import (
    DTYPES,
    FAR,
    Cost,
    Setup,
    Suite,
    in_dtype,
    normal,
    reference,
    vary,
)
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Close, Expected


@dataclass(frozen=True, slots=True)
class Ids:
    """`first` is the lowest id; only rows from there on are filled."""

    count: int
    first: int = 0


SLOT = "embedding"
BASE = EmbeddingSpec(100, 64, "float32")
VARIATIONS = ({"scale": 8.0}, {"num_embeddings": 1}, {"size": 1}, {"size": 37}, {"size": 2048})
SHAPES = (Ids(0), Ids(1), Ids(2), Ids(77), Ids(3000))
FAR_ROWS = FAR // 4096 + 8


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [Setup(spec, Ids(5), True) for spec in vary(BASE, VARIATIONS)]
    shapes = [Setup(in_dtype(BASE, d), s, s.count < 100) for d in DTYPES for s in SHAPES]
    far = EmbeddingSpec(FAR_ROWS, 4096, "bfloat16")
    return [*specs, *shapes, Setup(far, Ids(4, FAR_ROWS - 6), bytes=2 * FAR_ROWS * 4096)]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    scale = rng.choice((1.0, 1.0, 45.25))
    spec = EmbeddingSpec(rng.randrange(1, 3000), rng.randrange(1, 300), rng.choice(DTYPES), scale)
    return Setup(spec, Ids(rng.randrange(1, 100)))


@dataclass(slots=True)
class EmbeddingProblem:
    """`table` holds the rows from `first` on; the others are not filled."""

    spec: EmbeddingSpec
    ids: Tensor
    table: Tensor
    first: int

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        return {"y": op(place(self.ids), place.behind(self.table, self.first))}

    def expected(self) -> Mapping[str, Expected]:
        local = replace(self.spec, num_embeddings=len(self.table), dtype="float32")
        y = reference(SLOT, local)(self.ids - self.first, self.table.float())
        return {"y": Close(y, self.spec.dtype)}

    def alone(self) -> tuple[EmbeddingProblem, slice]:
        at = slice(len(self.ids) // 2, len(self.ids) // 2 + 1)
        return replace(self, ids=self.ids[at]), at

    def cost(self) -> Cost:
        moved = 2 * self.ids.numel() * self.spec.size * self.table.itemsize
        return Cost(moved + self.ids.nbytes, 0)

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        ids, table = place(self.ids), place.behind(self.table, self.first)
        return lambda: op(ids, table)


def _problem(setup: Setup, source: torch.Generator) -> EmbeddingProblem:
    spec, shape = setup.spec, setup.shape
    ids = torch.randint(shape.first, spec.num_embeddings, (shape.count,), generator=source)
    ids[-1:] = spec.num_embeddings - 1
    table = normal((spec.num_embeddings - shape.first, spec.size), spec.dtype, source)
    return EmbeddingProblem(spec, ids.int(), table, shape.first)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [EmbeddingSpec(32000, 2048, dtype) for dtype in DTYPES[:2]]
    return [Setup(spec, Ids(n)) for spec in specs for n in (1, 1024)]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
