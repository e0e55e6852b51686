"""Cases of slot `lora`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, LoraSpec, LoraTokens
from hotshoe.slots.reference.lora import tokens_of
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
from hotshoe_conformance.tolerance import Close, Expected

SLOT = "lora"
BASE = LoraSpec(64, 96, 8, 4, "float32")
VARIATIONS = (
    {"in_features": 1},
    {"out_features": 37},
    {"rank": 1},
    {"rank": 64},
    {"max_adapters": 1},
    {"parts": (50, 46)},
    {"rank": 6, "parts": (64, 3, 29)},
)
ROUNDING = {"float32": 2**-20, "bfloat16": 2**-8, "float16": 2**-11}
COUNTS = (1, 5, 300)


@dataclass(frozen=True, slots=True)
class Tokens:
    """How many there are, each with an adapter of its own or none."""

    count: int


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [Setup(spec, Tokens(5), True) for spec in vary(BASE, VARIATIONS)]
    return specs + [Setup(in_dtype(BASE, d), Tokens(n), n < 100) for d in DTYPES for n in COUNTS]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    parts = tuple(rng.randrange(1, 100) for _ in range(rng.randrange(1, 4)))
    rank, adapters = rng.randrange(1, 17) * len(parts), rng.randrange(1, 9)
    dtype = rng.choice(DTYPES)
    spec = LoraSpec(rng.randrange(1, 300), sum(parts), rank, adapters, dtype, parts)
    return Setup(spec, Tokens(rng.randrange(1, 50)))


@dataclass(slots=True)
class LoraProblem:
    """`places` names the adapter of each token, -1 none."""

    spec: LoraSpec
    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    places: Tensor

    @property
    def tokens(self) -> LoraTokens:
        return tokens_of(self.places, self.spec.max_adapters, "cpu")

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        y = place(self.y, written=True)
        op(y, place(self.x), place(self.a), place(self.b), _placed(self.tokens, place))
        return {"y": y}

    def expected(self) -> Mapping[str, Expected]:
        op, y = reference(SLOT, replace(self.spec, dtype="float32")), self.y.float().clone()
        x, a, b = self.x.float(), self.a.float(), self.b.float()
        op(y, x, a, b, self.tokens)
        sizes = self.y.float().abs()
        op(sizes, x.abs(), a.abs(), b.abs(), self.tokens)
        rounded = sizes * ROUNDING[self.spec.dtype]  # of the intermediate of `rank` numbers
        return {"y": Close(y, self.spec.dtype, sizes, slack=rounded)}

    def alone(self) -> tuple[LoraProblem, slice]:
        at = slice(len(self.x) // 2, len(self.x) // 2 + 1)
        return replace(self, x=self.x[at], y=self.y[at], places=self.places[at]), at

    def cost(self) -> Cost:
        spec, rows = self.spec, len(self.x)
        width = spec.rank * (spec.in_features + spec.out_features)
        moved = self.x.nbytes + 2 * self.y.nbytes + len(self.tokens.used) * width * self.x.itemsize
        return Cost(moved, 2 * rows * width)

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        y, (x, a, b) = place(self.y, written=True), map(place, (self.x, self.a, self.b))
        tokens = _placed(self.tokens, place)
        return lambda: op(y, x, a, b, tokens)


def _placed(tokens: LoraTokens, place: Place) -> LoraTokens:
    there = (place(t) for t in (tokens.places, tokens.order, tokens.starts))
    return LoraTokens(*there, tokens.used)


def _problem(setup: Setup, source: torch.Generator) -> LoraProblem:
    spec, count = setup.spec, setup.shape.count
    sizes = (spec.in_features, spec.out_features)
    x, y = (normal((count, size), spec.dtype, source) for size in sizes)
    a, b = (normal((spec.max_adapters, spec.rank, size), spec.dtype, source) for size in sizes)
    if spec.parts:
        share = spec.rank // len(spec.parts)
        b *= torch.block_diag(*(torch.ones(share, size) for size in spec.parts)).to(b.dtype)
    places = torch.randint(-1, spec.max_adapters, (count,), generator=source).int()
    return LoraProblem(spec, x, y, a, b, places)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    return [Setup(LoraSpec(4096, 4096, 16, 8, DTYPES[1]), Tokens(count)) for count in (1, 64, 1024)]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
