"""Cases of slot `gated_mlp`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import GatedMlpSpec, KVLayout, LinearSpec
from hotshoe.slots.reference.activation import ACTIVATIONS
from hotshoe_conformance.cases.base import DTYPES, Cost, Setup, Suite, in_dtype, normal, reference
from hotshoe_conformance.cases.quant import OPERANDS, rounding, spoil
from hotshoe_conformance.place import Place, padded
from hotshoe_conformance.tolerance import TOLERANCES, Close, Exact, Expected

SLOT = "gated_mlp"
#: No activation is steeper.
STEEPEST = 1.2


@dataclass(frozen=True, slots=True)
class Rows:
    """`gap` elements between rows; `nan` puts NaN into one of them."""

    count: int
    gap: int = 0
    nan: bool = False


def mlp(hidden: int, inner: int, dtype: str, kind: str = "silu", **both: Any) -> GatedMlpSpec:
    """Return a block whose two matrices are stored alike."""
    gate_up = LinearSpec(hidden, 2 * inner, dtype, **both)
    return GatedMlpSpec(gate_up, LinearSpec(inner, hidden, dtype, **both), kind)


VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"kind": "gelu"},
    {"kind": "gelu_tanh"},
    {"bias": True},
    {"hidden": 37},
    {"inner": 1},
    {"inner": 41},
    *OPERANDS,
    {**OPERANDS[0], "bias": True},
)
SHAPES = (Rows(0), Rows(1), Rows(4, gap=24), Rows(17), Rows(64, gap=8), Rows(130))


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    setups = []
    for dtype in DTYPES:
        base = {"hidden": 64, "inner": 96, "dtype": dtype}
        setups += [Setup(mlp(**{**base, **v}), Rows(5), True) for v in VARIATIONS]
        setups += [Setup(mlp(**base), shape, shape.count < 100) for shape in SHAPES]
        setups += [Setup(mlp(**base, **o), Rows(3, nan=True), True) for o in ({}, *OPERANDS)]
    return setups


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    kinds = {"bias": rng.random() < 0.3, **(rng.choice(OPERANDS) if rng.random() < 0.3 else {})}
    sizes = (rng.randrange(1, 300), rng.randrange(1, 300), rng.choice(DTYPES))
    spec = mlp(*sizes, rng.choice(sorted(ACTIVATIONS)), **kinds)
    return Setup(spec, Rows(rng.randrange(1, 40), rng.choice((0, 0, 8, 3))))


@dataclass(slots=True)
class MlpProblem:
    """x, and weight and bias of gate | up and of down."""

    spec: GatedMlpSpec
    x: Tensor
    gate_up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]
    gap: int

    def _load(self, op: Any, wide: bool = False) -> None:
        for load, (weight, bias), spec, parts in (
            (op.load_gate_up, self.gate_up, self.spec.gate_up, 2),
            (op.load_down, self.down, self.spec.down, 1),
        ):
            tensors = {"weight": weight, **({"bias": bias} if spec.bias else {})}
            load({k: (t.float() if wide else t).tensor_split(parts) for k, t in tensors.items()})

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        self._load(op)
        x = place(padded(self.x, self.gap))
        return {"y": op(x), "x": x}

    def expected(self) -> Mapping[str, Expected]:
        """Errors of the first product go through the activation into the second one."""
        spec, x = self.spec, self.x.float()
        op = reference(SLOT, in_dtype(spec, "float32"))
        self._load(op, wide=True)
        limit = TOLERANCES[spec.dtype]
        inner, magnitude = product(x, self.gate_up, spec.gate_up)
        error = limit.rounding * inner.abs() + limit.accumulation * magnitude
        error += tie(x, self.gate_up[0], spec.gate_up)
        (gate, up), (gate_error, up_error) = inner.chunk(2, 1), error.chunk(2, 1)
        active = ACTIVATIONS[spec.activation](gate)
        hidden = active * up
        error = STEEPEST * gate_error * (up.abs() + up_error) + active.abs() * up_error
        error += limit.rounding * hidden.abs()
        slack = error @ self.down[0].float().abs().T
        slack += tie(hidden, self.down[0], spec.down)
        _, magnitude = product(hidden, self.down, spec.down)
        nan = x.isnan().any(1, keepdim=True)
        return {"y": Close(op(x), spec.dtype, magnitude, slack, nan=nan), "x": Exact(self.x)}

    def alone(self) -> tuple[MlpProblem, slice]:
        at = slice(len(self.x) // 2, len(self.x) // 2 + 1)
        return replace(self, x=self.x[at], gap=0), at

    def cost(self) -> Cost:
        elements = self.gate_up[0].numel() + self.down[0].numel()
        size = 1 if self.spec.down.weight else self.x.itemsize
        return Cost(size * elements + 2 * self.x.nbytes, 2 * len(self.x) * elements)

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        self._load(op)
        x = place(self.x)
        return lambda: op(x)


def product(x: Tensor, operands: tuple[Tensor, Tensor], spec: LinearSpec) -> tuple[Tensor, Tensor]:
    """Return x W^T + b, and the sum of the magnitudes that are added up."""
    weight, bias = (t.float() for t in operands)
    bias = bias * spec.bias
    return x @ weight.T + bias, x.abs() @ weight.abs().T + bias.abs()


def tie(x: Tensor, weight: Tensor, spec: LinearSpec) -> Tensor | float:
    """Return what eight-bit operands move a product by, compared with exact ones."""
    if spec.weight is None or not len(x):
        return 0.0
    wide = weight.float()
    moved = x.abs() @ rounding(wide, spec.weight).T
    if spec.activation is not None:
        moved += rounding(x, spec.activation) @ wide.abs().T
    return 2 * moved


def _problem(setup: Setup, source: torch.Generator) -> MlpProblem:
    spec, rows = setup.spec, setup.shape
    dtype, first, second = spec.dtype, spec.gate_up, spec.down
    sides = [
        (
            normal((s.out_features, s.in_features), dtype, source, s.in_features**-0.5),
            normal((s.out_features,), dtype, source),
        )
        for s in (first, second)
    ]
    x = normal((rows.count, first.in_features), dtype, source)
    if rows.nan:
        spoil(x)
    return MlpProblem(spec, x, sides[0], sides[1], rows.gap)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    return [Setup(mlp(1024, 3072, dtype), Rows(n)) for dtype in DTYPES[:2] for n in (1, 256)]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
