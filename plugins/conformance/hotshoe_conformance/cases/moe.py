"""Cases of slot `moe`: every router, empty experts, all tokens to the same ones, a share of all."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, LinearSpec, MoeSpec, Placement, RouterSpec
from hotshoe.slots.reference.moe import EXPERT_ACTIVATIONS, activated
from hotshoe.slots.reference.router import route
from hotshoe_conformance.cases.base import DTYPES, Cost, Setup, Suite, normal
from hotshoe_conformance.cases.mlp import STEEPEST, product, tie
from hotshoe_conformance.cases.quant import OPERANDS, spoil
from hotshoe_conformance.place import Place, padded
from hotshoe_conformance.tolerance import TOLERANCES, Close, Exact, Expected

SLOT = "moe"
#: Logits that differ by less may be rounded to each other; tokens whose choice depends on it are
#: drawn again.
NEAR = 1e-4
#: So many times as large are the logits of experts that every token chooses.
FAVOR = 20.0
#: Tokens take so many turns where a rank holds some experts alone, and this is what was counted.
TURNS, COUNTED = 3, 5


@dataclass(frozen=True, slots=True)
class Tokens:
    """`gap` elements between rows; `nan` puts NaN into one of them.

    Attributes:
        chosen: Experts that tokens choose among; 0 for all.
    """

    count: int
    gap: int = 0
    nan: bool = False
    chosen: int = 0


def moe(hidden: int, inner: int, dtype: str, experts: int = 8, **more: Any) -> MoeSpec:
    """Return a mixture whose experts' matrices are stored alike."""
    both = {key: more.pop(key) for key in ("bias", "weight", "activation") if key in more}
    gate_up = LinearSpec(hidden, (1 + more.get("gated", True)) * inner, dtype, **both)
    down = LinearSpec(inner, hidden, dtype, **both)
    return MoeSpec(gate_up, down, experts, more.pop("top_k", 2), more.pop("kind", "silu"), **more)


NORMED = RouterSpec(renormalize=True)
SIGMOID = RouterSpec("sigmoid", renormalize=True, scale=2.5, correction=True)
ROUTERS = (
    NORMED,
    RouterSpec(scale=1.5),
    RouterSpec(correction=True),
    RouterSpec("sigmoid"),
    SIGMOID,
    replace(SIGMOID, groups=4, groups_kept=2, group_score="top2"),
    RouterSpec(groups=4, groups_kept=2),
    RouterSpec("sparsemixer", jitter=0.1),
    replace(SIGMOID, scoring="sqrtsoftplus"),
)
#: As gpt-oss has them.
CLAMPED = {"limit": 0.7, "alpha": 1.702, "shift": 1.0, "bias": True, "router": NORMED}
VARIATIONS: tuple[dict[str, Any], ...] = (
    *({"router": router} for router in ROUTERS),
    {"kind": "gelu"},
    {"kind": "gelu_tanh", "bias": True},
    {"kind": "relu2", "gated": False},
    {"kind": "silu", "gated": False, "limit": 0.5, "bias": True},
    CLAMPED,
    {"limit": 0.4},
    {"limit": 0.4, "gate_limit": 0.9},
    {"gate_limit": 0.4},
    {"top_k": 1},
    {"top_k": 8, "router": NORMED},
    {"experts": 1, "top_k": 1},
    {"experts": 33, "top_k": 5},
    {"hidden": 37, "inner": 41},
    {"inner": 1},
    *({"held": held, "bias": True} for held in (1, 3, 8)),
    {"held": 5, "top_k": 4, "router": SIGMOID},
    *OPERANDS,
    {**OPERANDS[0], "bias": True},
    *({"weight": operands["weight"]} for operands in OPERANDS),
)
SHAPES = (
    Tokens(0),
    Tokens(1),
    Tokens(4, gap=24),
    Tokens(17, chosen=3),
    Tokens(40, chosen=2),
    Tokens(130, gap=8),
)


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    setups = []
    for dtype in DTYPES:
        base = {"hidden": 64, "inner": 48, "dtype": dtype}
        setups += [Setup(moe(**{**base, **v}), Tokens(7), True) for v in VARIATIONS]
        setups += [Setup(moe(**base), shape, shape.count < 100) for shape in SHAPES]
        setups += [Setup(moe(**base, held=4), Tokens(40, chosen=6))]
        nans = ({}, {"held": 4}, *OPERANDS)
        setups += [Setup(moe(**base, **o), Tokens(3, nan=True), True) for o in nans]
    return setups


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    experts = rng.choice((8, 16, 24))
    options = {"bias": rng.random() < 0.3, "gated": rng.random() < 0.8}
    options |= rng.choice(OPERANDS) if rng.random() < 0.2 else {}
    options |= {"held": rng.randrange(1, experts)} if rng.random() < 0.3 else {}
    options |= rng.choice((CLAMPED, {"router": rng.choice(ROUTERS)}))
    kind = "silu" if "alpha" in options else rng.choice(sorted(EXPERT_ACTIVATIONS))
    sizes = (rng.randrange(1, 200), rng.randrange(1, 200), rng.choice(DTYPES))
    spec = moe(*sizes, experts, kind=kind, top_k=rng.randrange(1, 5), **options)
    return Setup(spec, Tokens(rng.randrange(1, 40), rng.choice((0, 0, 8, 3))))


@dataclass(slots=True)
class MoeProblem:
    """x, logits, correction, and weight and bias of each expert's gate | up and down.

    `gate_up` and `down` hold all places' [places, rows, columns] and [places, rows]; `table` is
    that of a `Placement`.
    """

    spec: MoeSpec
    x: Tensor
    logits: Tensor
    correction: Tensor | None
    gate_up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]
    gap: int
    table: Tensor | None = None

    def _load(self, op: Any) -> None:
        parts = 1 + self.spec.gated
        sides = (
            (op.load_gate_up, self.gate_up, self.spec.gate_up, parts),
            (op.load_down, self.down, self.spec.down, 1),
        )
        for load, (weights, biases), spec, count in sides:
            for expert in range(self.spec.places):
                tensors = {"weight": weights[expert].tensor_split(count)}
                if spec.bias:
                    tensors["bias"] = biases[expert].tensor_split(count)
                load(expert, tensors)

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        self._load(op)
        x, logits = place(padded(self.x, self.gap)), place(self.logits)
        correction = None if self.correction is None else place(self.correction)
        inputs = {"x": x, "logits": logits}
        if self.table is None:
            return {"y": op(x, logits, correction), **inputs}
        counts = place(torch.full((self.spec.num_experts,), COUNTED, dtype=torch.int32), True)
        y = op(x, logits, correction, Placement(place(self.table), counts))
        return {"y": y, **inputs, **({} if self.logits.isnan().any() else {"counts": counts})}

    def _places(self, ids: Tensor) -> Tensor:
        """Return where chosen experts are, of this shape."""
        if self.table is None:
            return ids
        return self.table[torch.arange(len(ids))[:, None] % TURNS, ids]

    def expected(self) -> Mapping[str, Expected]:
        """Every expert's result is rounded once more than a block's that stands alone."""
        spec, x = self.spec, self.x.float()
        weights, ids = route(self.logits, self.correction, spec.top_k, spec.router)
        size = spec.down.out_features
        y, magnitude, slack = (torch.zeros(len(x), size) for _ in range(3))
        places = self._places(ids)
        for expert in range(spec.places):
            tokens, place = (places == expert).nonzero(as_tuple=True)
            share = weights[tokens, place][:, None]
            for total, found in zip(
                (y, magnitude, slack), self._one(expert, x[tokens]), strict=True
            ):
                total.index_add_(0, tokens, found * (share if total is y else share.abs()))
        read = (places < spec.places).any(1)
        nan = (self.x.isnan().any(1) & read | self.logits.isnan().any(1))[:, None]
        found: dict[str, Expected] = {
            "y": Close(y, spec.dtype, magnitude, slack, nan=nan),
            "x": Exact(self.x),
            "logits": Exact(self.logits),
        }
        if self.table is not None and not self.logits.isnan().any():
            chosen = ids.flatten().bincount(minlength=spec.num_experts).int()
            found["counts"] = Exact(chosen + COUNTED)
        return found

    def _one(self, expert: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return an expert's result, the magnitudes that it adds up, and its allowed error."""
        spec, limit = self.spec, TOLERANCES[self.spec.dtype]
        gate_up = (self.gate_up[0][expert], self.gate_up[1][expert])
        down = (self.down[0][expert], self.down[1][expert])
        inner, magnitude = product(x, gate_up, spec.gate_up)
        error = limit.rounding * inner.abs() + limit.accumulation * magnitude
        error += tie(x, gate_up[0], spec.gate_up)
        hidden = activated(inner, spec)
        error = self._through(inner, error) + limit.rounding * hidden.abs()
        slack = error @ down[0].float().abs().T + tie(hidden, down[0], spec.down)
        y, magnitude = product(hidden, down, spec.down)
        return y, magnitude, slack + limit.rounding * y.abs()

    def _through(self, inner: Tensor, error: Tensor) -> Tensor:
        """Return the error that an activation makes of that of its input."""
        spec = self.spec
        gate, gate_error = (t.chunk(1 + spec.gated, 1)[0] for t in (inner, error))
        steep = STEEPEST if spec.activation != "relu2" else 2 * gate.abs() + gate_error
        active_error = steep * gate_error
        if not spec.gated:
            return active_error
        active = activated(gate, replace(spec, gated=False)).abs()
        up, up_error = inner.chunk(2, 1)[1] + spec.shift, error.chunk(2, 1)[1]
        return active_error * (up.abs() + up_error) + active * up_error

    def alone(self) -> tuple[MoeProblem, slice]:
        at = slice(len(self.x) // 2, len(self.x) // 2 + 1)
        table = None if self.table is None else self.table.roll(-at.start, 0)
        return replace(self, x=self.x[at], logits=self.logits[at], gap=0, table=table), at

    def cost(self) -> Cost:
        _, ids = route(self.logits, self.correction, self.spec.top_k, self.spec.router)
        elements = self.gate_up[0][0].numel() + self.down[0][0].numel()
        size = 1 if self.spec.down.weight else self.x.itemsize
        places = self._places(ids)
        here = places[places < self.spec.places]
        read = len(here.unique()) * elements * size
        return Cost(read + 2 * self.x.nbytes, 2 * here.numel() * elements)

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        self._load(op)
        x, logits = place(self.x), place(self.logits)
        correction = None if self.correction is None else place(self.correction)
        if self.table is None:
            return lambda: op(x, logits, correction)
        placement = Placement(place(self.table))
        return lambda: op(x, logits, correction, placement)


def _problem(setup: Setup, source: torch.Generator) -> MoeProblem:
    spec, tokens = setup.spec, setup.shape
    sides = [
        (
            normal(
                (spec.places, s.out_features, s.in_features),
                spec.dtype,
                source,
                s.in_features**-0.5,
            ),
            normal((spec.places, s.out_features), spec.dtype, source),
        )
        for s in (spec.gate_up, spec.down)
    ]
    x = normal((tokens.count, spec.gate_up.in_features), spec.dtype, source)
    correction = None
    if spec.router.correction:
        correction = normal((spec.num_experts,), "float32", source, 0.3)
    logits = _logits(spec, tokens, correction, source)
    if tokens.nan:
        spoil(x)
        logits[0, -1] = float("nan")
    table = None if spec.held is None else _table(spec, source)
    return MoeProblem(spec, x, logits, correction, sides[0], sides[1], tokens.gap, table)


def _table(spec: MoeSpec, source: torch.Generator) -> Tensor:
    """Draw which experts are here, each of them in all turns but one."""
    table = torch.full((TURNS, spec.num_experts), spec.places, dtype=torch.int32)
    here = torch.randperm(spec.num_experts, generator=source)[: spec.places]
    for place, expert in enumerate(here.tolist()):
        table[:, expert] = place
        table[place % TURNS, expert] = spec.places
    return table


def _logits(
    spec: MoeSpec, tokens: Tokens, correction: Tensor | None, source: torch.Generator
) -> Tensor:
    """Draw logits whose choice no rounding changes."""
    logits = normal((tokens.count, spec.num_experts), "float32", source)
    redrawn = torch.ones(tokens.count, dtype=torch.bool)
    while redrawn.any():
        logits[redrawn] = normal((int(redrawn.sum()), spec.num_experts), "float32", source)
        if tokens.chosen:
            logits[:, : tokens.chosen] += redrawn[:, None] * FAVOR
        _, ids = route(logits, correction, spec.top_k, spec.router)
        redrawn = torch.zeros_like(redrawn)
        for _ in range(4):
            moved = logits + normal(logits.shape, "float32", source, NEAR)
            others = route(moved, correction, spec.top_k, spec.router)[1]
            redrawn |= (ids.sort(1).values != others.sort(1).values).any(1)
    return logits


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [moe(1024, 512, dtype, 32, top_k=4, router=NORMED) for dtype in DTYPES[:2]]
    return [Setup(spec, Tokens(n)) for spec in specs for n in (1, 8, 256)]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
