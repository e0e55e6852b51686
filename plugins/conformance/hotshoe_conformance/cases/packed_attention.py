"""Cases of slot `packed_attention`: requests side by side in a step, in float64 one by one.

Values of other requests, and those outside every window, are large, so that a key too many shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, PackedAttentionSpec, StepShape
from hotshoe.slots.reference.packed import attend
from hotshoe.slots.reference.rotary import rotate
from hotshoe_conformance.cases.attention import ROUNDED_OPERANDS
from hotshoe_conformance.cases.base import DTYPES, Cost, Setup, Suite, in_dtype, normal, vary
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Close, Expected

SLOT = "packed_attention"
BASE = PackedAttentionSpec(4, 4, 32, "float32", 32**-0.5)


@dataclass(frozen=True, slots=True)
class Requests:
    """Tokens of each."""

    lengths: tuple[int, ...]


VARIATIONS: tuple[dict[str, Any], ...] = (
    {"num_kv_heads": 2},
    {"num_heads": 12, "num_kv_heads": 1},
    {"num_heads": 3, "num_kv_heads": 3},
    {"head_dim": 16},
    {"head_dim": 64},
    {"head_dim": 80},
    {"head_dim": 128},
    {"head_dim": 256},
    {"scale": 0.5},
    {"window": 0},
    {"window": 5},
    {"window": 64},
    {"rotary_dim": 32},
    {"rotary_dim": 8},
    {"rotary_dim": 32, "window": 9, "num_kv_heads": 2},
)
MIXED = Requests((7, 1, 70, 16, 3))
SHAPES = (
    Requests((1,)),
    Requests((5,)),
    Requests((64, 64)),
    Requests((130, 1, 1, 17)),
    Requests(tuple(1 + 7 * i % 40 for i in range(60))),
    Requests((600, 33)),
)


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [Setup(spec, MIXED, True) for spec in vary(BASE, VARIATIONS)]
    shapes = [Setup(in_dtype(BASE, d), s, sum(s.lengths) < 200) for d in DTYPES for s in SHAPES]
    local = replace(BASE, window=20, rotary_dim=32)
    return [*specs, *shapes, *(Setup(in_dtype(local, d), SHAPES[-1]) for d in DTYPES)]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    kv_heads, dim = rng.choice((1, 2, 3, 8)), rng.choice((16, 32, 64, 96))
    spec = PackedAttentionSpec(
        kv_heads * rng.randrange(1, 5),
        kv_heads,
        dim,
        rng.choice(DTYPES),
        dim**-0.5,
        rng.choice((0, dim // 2, dim)),
        rng.choice((None, rng.randrange(50))),
    )
    lengths = [rng.choice((1, rng.randrange(1, 150))) for _ in range(rng.randrange(1, 9))]
    return Setup(spec, Requests(tuple(lengths)))


@dataclass(slots=True)
class PackedProblem:
    """One step; every request begins at position 0."""

    spec: PackedAttentionSpec
    lengths: tuple[int, ...]
    qkv: Tensor
    table: Tensor

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        return {"out": self.prepare(op, place)()}

    def prepare(self, op: Any, place: Place) -> Callable[[], Tensor]:
        starts = torch.zeros(len(self.lengths) + 1, dtype=torch.int32)
        counts = torch.tensor(self.lengths, dtype=torch.int32)
        starts[1:] = counts.cumsum(0)
        longest, host = max(self.lengths), (self.lengths, self.lengths)
        shape = StepShape(
            len(self.lengths), place(starts), place(counts), longest, longest, host_lens=host
        )
        positions = torch.cat([torch.arange(n, dtype=torch.int32) for n in self.lengths])
        qkv, at = place(self.qkv), place(positions)
        table = place(self.table) if self.spec.rotary_dim else None
        return lambda: op(qkv.clone(), at, table, op.prepare(shape))

    def expected(self) -> Mapping[str, Expected]:
        spec = self.spec
        heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        parts, magnitudes = [], []
        for rows in self.qkv.split(list(self.lengths)):
            q, k, v = rows.view(len(rows), -1, spec.head_dim).split(heads, 1)
            if spec.rotary_dim:
                turning = self.table[: len(rows)]
                q, k = (rotate(x, turning, False) for x in (q, k))
            q, k, v = q.double(), k.double(), v.double()
            parts.append(attend(spec, q, k, v))
            magnitudes.append(attend(spec, q, k, v.abs()))
        value, magnitude = (torch.cat(x).flatten(1) for x in (parts, magnitudes))
        if spec.dtype != "float32":
            magnitude = ROUNDED_OPERANDS * magnitude
        return {"out": Close(value, spec.dtype, magnitude)}

    def alone(self) -> tuple[PackedProblem, slice]:
        at = len(self.lengths) // 2
        begin = sum(self.lengths[:at])
        rows = slice(begin, begin + self.lengths[at])
        only = self.lengths[at : at + 1]
        return replace(self, lengths=only, qkv=self.qkv[rows]), rows

    def cost(self) -> Cost:
        spec = self.spec
        sides = max(self.lengths) if spec.window is None else spec.window
        pairs = sum(n * min(n, 2 * sides + 1) for n in self.lengths)
        return Cost(2 * self.qkv.nbytes, 4 * pairs * spec.num_heads * spec.head_dim)


def _problem(setup: Setup, source: torch.Generator) -> PackedProblem:
    spec, lengths = setup.spec, setup.shape.lengths
    qkv = normal((sum(lengths), spec.width), spec.dtype, source)
    qkv[:: max(len(qkv) - 1, 1), -spec.num_kv_heads * spec.head_dim :] *= 1000
    angles = torch.rand(max(lengths), spec.rotary_dim // 2, generator=source) * 6
    return PackedProblem(spec, lengths, qkv, torch.cat((angles.cos(), angles.sin()), 1))


#: MiniLM over sentences, and BERT over pages.
PUBLISHED = (
    (PackedAttentionSpec(12, 12, 32, "bfloat16", 32**-0.5), Requests((32,) * 64)),
    (PackedAttentionSpec(12, 12, 64, "bfloat16", 0.125), Requests((512,) * 8)),
)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    return [Setup(in_dtype(spec, d), shape) for d in DTYPES[:2] for spec, shape in PUBLISHED]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
