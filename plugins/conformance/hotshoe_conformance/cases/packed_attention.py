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
    {"head_dim": 128, "scale": 0.09},
    {"head_dim": 256, "scale": 0.06},
    {"scale": 0.3},  # a larger one would make of rounding more than the tolerance
    {"window": 0},
    {"window": 5},
    {"window": 64},
    {"rotary_dim": 32},
    {"rotary_dim": 8},
    {"rotary_dim": 32, "window": 9, "num_kv_heads": 2},
    {"bias_span": 0},
    {"bias_span": 5, "scale": 0.3},
    {"bias_span": 128, "num_kv_heads": 2},
    {"bias_span": 30, "window": 20},
    {"limited": True},
    {"limited": True, "bias_span": 8, "rotary_dim": 32},
    {"limited": True, "window": 6},
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
    biased = replace(BASE, bias_span=91, head_dim=64, scale=0.15)
    long = [Setup(in_dtype(spec, d), SHAPES[-1]) for d in DTYPES for spec in (local, biased)]
    return [*specs, *shapes, *long]


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
        rng.choice((None, rng.randrange(200))),
        limited=rng.random() < 0.3,
    )
    lengths = [rng.choice((1, rng.randrange(1, 150))) for _ in range(rng.randrange(1, 9))]
    return Setup(spec, Requests(tuple(lengths)))


@dataclass(slots=True)
class PackedProblem:
    """One step; every request begins at position 0. Where the specification limits what is seen,
    that is two thirds of a request."""

    spec: PackedAttentionSpec
    lengths: tuple[int, ...]
    qkv: Tensor
    table: Tensor
    bias: Tensor

    @property
    def num_keys(self) -> list[int]:
        """Tokens of each request that are seen."""
        if not self.spec.limited:
            return list(self.lengths)
        return [max(1, n * 2 // 3) for n in self.lengths]

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
        bias = None if self.spec.bias_span is None else place(self.bias)
        seen = None
        if self.spec.limited:
            seen = place(torch.tensor(self.num_keys, dtype=torch.int32))
        return lambda: op(qkv.clone(), at, table, op.prepare(shape, seen), bias)

    def expected(self) -> Mapping[str, Expected]:
        spec = self.spec
        heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        parts, magnitudes = [], []
        requests = zip(self.qkv.split(list(self.lengths)), self.num_keys, strict=True)
        for rows, count in requests:
            q, k, v = rows.view(len(rows), -1, spec.head_dim).split(heads, 1)
            if spec.rotary_dim:
                turning = self.table[: len(rows)]
                q, k = (rotate(x, turning, False) for x in (q, k))
            q, k, v = q.double(), k[:count].double(), v[:count].double()
            parts.append(attend(spec, q, k, v, self.bias))
            magnitudes.append(attend(spec, q, k, v.abs(), self.bias))
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
    table = torch.cat((angles.cos(), angles.sin()), 1)
    distances = 0 if spec.bias_span is None else 2 * spec.bias_span + 1
    bias = 2 * torch.randn(spec.num_heads, distances, generator=source)
    return PackedProblem(spec, lengths, qkv, table, bias)


#: MiniLM over sentences, BERT over pages, and MPNet over these.
PUBLISHED = (
    (PackedAttentionSpec(12, 12, 32, "bfloat16", 32**-0.5), Requests((32,) * 64)),
    (PackedAttentionSpec(12, 12, 64, "bfloat16", 0.125), Requests((512,) * 8)),
    (PackedAttentionSpec(12, 12, 64, "bfloat16", 0.125, bias_span=128), Requests((512,) * 8)),
)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    return [Setup(in_dtype(spec, d), shape) for d in DTYPES[:2] for spec, shape in PUBLISHED]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
