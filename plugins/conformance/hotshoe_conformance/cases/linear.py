"""Cases of slot `linear`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, LinearSpec, QuantSpec
from hotshoe_conformance.cases.base import (
    DTYPES,
    FAR,
    Cost,
    Setup,
    Suite,
    normal,
    reference,
)
from hotshoe_conformance.cases.quant import (
    ACTIVATIONS,
    FEW,
    FLOATS,
    OPERANDS,
    rounding,
    spoil,
    stored_floats,
    stored_values,
)
from hotshoe_conformance.place import Place, padded
from hotshoe_conformance.tolerance import Close, Exact, Expected


@dataclass(frozen=True, slots=True)
class Rows:
    """`gap` elements between rows; `parts` is how many matrices the weight is stacked from.

    `nan` puts NaN into one row, which alone, and as a whole, has to become NaN.
    """

    count: int
    gap: int = 0
    parts: int = 1
    nan: bool = False


#: Four bits that meet x of eight.
NARROW = tuple(
    {"weight": QuantSpec("int4", "group", size, online=True), "activation": ACTIVATIONS[0]}
    for size in (8, 32)
)
SLOT = "linear"
BASE = LinearSpec(64, 96, "float32")
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"bias": True},
    {"out_dtype": "float32"},
    {"in_features": 37},
    {"out_features": 41},
    {"out_features": 1},
    {"in_features": 1},
    {"in_features": 1536},
    {"out_features": 1536},
    *OPERANDS,
    *({**operands, "bias": True} for operands in OPERANDS),
    *({**operands, "in_features": 200, "out_features": 72} for operands in OPERANDS),
    *FLOATS,
    *({**forms, "in_features": 544, "bias": True} for forms in (*FLOATS, *NARROW, *FEW)),
)
SHAPES = (
    Rows(0),
    Rows(1),
    Rows(2),
    Rows(5, gap=24),
    Rows(16),
    Rows(17, parts=3),
    Rows(63),
    Rows(64, gap=8),
    Rows(300),
)
SLACK_STEPS = 2.0


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    setups = []
    for dtype in DTYPES:
        base = replace(BASE, dtype=dtype)
        setups += [Setup(replace(base, **v), Rows(5), True) for v in ({}, *VARIATIONS)]
        setups += [Setup(base, shape, shape.count < 100) for shape in SHAPES]
        for operands in (*OPERANDS, *FLOATS, *NARROW, *FEW):
            quantized = replace(base, **operands)
            setups += [
                Setup(quantized, s, operands not in OPERANDS) for s in (Rows(1), Rows(33, parts=2))
            ]
            setups += [Setup(quantized, Rows(count, nan=True), True) for count in (3, 70)]
        setups.append(Setup(base, Rows(3, nan=True), True))
    # The stride itself fits 32 bits, so that a product with it is not widened for its sake.
    far = Setup(LinearSpec(64, 32, "bfloat16"), Rows(3, gap=FAR // 2), bytes=2 * FAR + 1024)
    return [*setups, far]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    size = rng.choice((lambda: rng.randrange(1, 400), lambda: 32 * rng.randrange(1, 24)))
    spec = LinearSpec(size(), size(), rng.choice(DTYPES), bias=rng.random() < 0.3)
    if rng.random() < 0.3:
        spec = replace(spec, **rng.choice(OPERANDS))
    if rng.random() < 0.1:
        stored = rng.choice((*FLOATS, *FEW))
        spec = replace(spec, in_features=32 * rng.randrange(1, 24), **stored)
    if rng.random() < 0.2:
        spec = replace(spec, out_dtype="float32")
    parts = rng.randrange(1, 1 + min(3, spec.out_features))
    return Setup(spec, Rows(rng.randrange(1, 80), rng.choice((0, 0, 8, 3)), parts))


@dataclass(slots=True)
class LinearProblem:
    """x, the weight's parts and the bias's; `stored` has what a checkpoint holds for them, if it
    does not hold plain numbers."""

    spec: LinearSpec
    x: Tensor
    weight: list[Tensor]
    bias: list[Tensor]
    gap: int
    stored: Mapping[str, list[Tensor]] = field(default_factory=dict)

    def _x(self, place: Place) -> Tensor:
        if self.gap < FAR // 2:
            return place(padded(self.x, self.gap))
        rows, width = self.x.shape
        storage = place.empty((rows - 1) * (width + self.gap) + width, dtype=self.x.dtype)
        x = storage.as_strided((rows, width), (width + self.gap, 1))
        return x.copy_(place(self.x))

    def _load(self, op: Any, place: Place) -> None:
        held = self.stored or {"weight": self.weight}
        op.load({**held, **({"bias": self.bias} if self.spec.bias else {})})

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        self._load(op, place)
        x = self._x(place)
        return {"y": op(x), "x": x}

    def expected(self) -> Mapping[str, Expected]:
        spec = replace(self.spec, dtype="float32", out_dtype=None)
        op = reference(SLOT, spec)
        weight = torch.cat(self.weight).float()
        bias = torch.cat(self.bias).float() if spec.bias else torch.zeros(spec.out_features)
        op.load({**(self.stored or {"weight": [weight]}), "bias": [bias]})
        x = self.x.float()
        magnitude = x.abs() @ weight.abs().T + bias.abs()
        slack: Tensor | float = 0.0
        if spec.weight is not None and len(x) and not self.stored:
            # A value halfway between two steps may be rounded either way.
            assert spec.activation is not None
            step = 2 * rounding(x, spec.activation).amax(1, keepdim=True)
            slack = SLACK_STEPS * step * weight.abs().amax(1)
        dtype, through = self.spec.out_dtype or self.spec.dtype, self.spec.dtype
        nan = x.isnan().any(1, keepdim=True)
        return {"y": Close(op(x), dtype, magnitude, slack, through, nan), "x": Exact(self.x)}

    def memory_bytes(self) -> tuple[int, int]:
        """Return the least and the most that the prepared weight may hold."""
        size = 1 if self.spec.weight else self.x.itemsize
        least = size * self.spec.in_features * self.spec.out_features // self._per_byte()
        # Tiles are padded, or numbers are as wide as x; a bias and scales come along.
        rows, columns = (
            -(-n // 256) * 256 for n in (self.spec.out_features, self.spec.in_features)
        )
        return least, max(2 * size, self.x.itemsize) * rows * columns + 64 * rows

    def _per_byte(self) -> int:
        """Return how many numbers may lie in a byte, or in as many as a plain one has."""
        weight = self.spec.weight
        if weight is not None and weight.values:
            return 2 if len(weight.values) > 4 else 4
        return 2 if self.stored or (weight is not None and weight.format == "int4") else 1

    def alone(self) -> tuple[LinearProblem, slice]:
        at = slice(len(self.x) // 2, len(self.x) // 2 + 1)
        return replace(self, x=self.x[at], gap=0), at

    def cost(self) -> Cost:
        spec, rows = self.spec, len(self.x)
        weight, _ = self.memory_bytes()
        out = rows * spec.out_features * self.x.itemsize
        return Cost(weight + self.x.nbytes + out, 2 * rows * spec.in_features * spec.out_features)

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        self._load(op, place)
        x = self._x(place)
        return lambda: op(x)


def _problem(setup: Setup, source: torch.Generator) -> LinearProblem:
    spec, rows = setup.spec, setup.shape
    x = normal((rows.count, spec.in_features), spec.dtype, source)
    if rows.nan:
        spoil(x)
    stored: Mapping[str, list[Tensor]] = {}
    sizes = [len(part) for part in torch.empty(spec.out_features).tensor_split(rows.parts)]
    if spec.weight in [floats["weight"] for floats in FLOATS]:
        stored, parts = stored_floats(sizes, spec.in_features, spec.weight.group_size, source)
    elif spec.weight is not None and spec.weight.values:
        stored, parts = stored_values(sizes, spec.in_features, spec.weight, source)
    else:
        weight = normal((spec.out_features, spec.in_features), spec.dtype, source)
        parts = list(weight.tensor_split(rows.parts))
    bias = normal((spec.out_features,), spec.dtype, source)
    return LinearProblem(
        spec,
        x,
        parts,
        list(bias.tensor_split(rows.parts)),
        rows.gap,
        stored,
    )


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [LinearSpec(2048, 2048, dtype) for dtype in DTYPES[:2]]
    specs.append(LinearSpec(2048, 2048, "bfloat16", **OPERANDS[0]))
    return [Setup(spec, Rows(n)) for spec in specs for n in (1, 256)]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
