"""Cases of slot `sparse_mla_attention`: as those of `mla_attention`, over random chosen tokens.

What a query has not chosen, and could see, would change its result.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, SparseMlaSpec
from hotshoe_conformance.cases import mla_attention
from hotshoe_conformance.cases.attention import MIXED, SHAPES, Batch
from hotshoe_conformance.cases.base import DTYPES, FAR, Setup, Suite, in_dtype, normal, vary
from hotshoe_conformance.cases.mla_attention import BASE, LITE, MlaProblem, problem_of
from hotshoe_conformance.cases.rows import QUANTIZED

SLOT = "sparse_mla_attention"
SPARSE = SparseMlaSpec(BASE, 12)
VARIATIONS: tuple[dict[str, Any], ...] = (
    *(
        {"attention": replace(BASE, **changes)}
        for changes in (*mla_attention.VARIATIONS, *QUANTIZED)
    ),
    {"top_k": 1},
    {"top_k": 16},
    {"top_k": 37},
    {"top_k": 64},
    {"top_k": 2048},
    {"sinks": True},
)


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [Setup(spec, MIXED, True) for spec in vary(SPARSE, VARIATIONS)]
    mixed = [replace(BASE, dtype="bfloat16"), replace(BASE, kv_dtype="bfloat16")]
    specs += [Setup(replace(SPARSE, attention=attention), MIXED, True) for attention in mixed]
    shapes = [
        Setup(in_dtype(SPARSE, dtype), shape, i in (0, 2, 4))
        for dtype in DTYPES
        for i, shape in enumerate(SHAPES)
    ]
    far = Setup(in_dtype(SPARSE, "bfloat16"), replace(MIXED, far=FAR), bytes=2 * FAR + (1 << 20))
    return [*specs, *shapes, far]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    setup = mla_attention.draw(rng, layouts)
    return replace(setup, spec=SparseMlaSpec(setup.spec, rng.choice((1, 5, 16, 32, 100, 512))))


def _problem(setup: Setup, source: torch.Generator) -> MlaProblem:
    problem = problem_of(setup.spec.attention, setup.shape, source)
    chosen = draw_chosen(setup.spec.top_k, setup.shape, source)
    heads = (setup.spec.attention.num_heads,)
    sinks = normal(heads, "float32", source) if setup.spec.sinks else None
    return replace(problem, chosen=chosen, sinks=sinks)


def draw_chosen(top_k: int, batch: Batch, source: torch.Generator) -> Tensor:
    """Choose for each query as many of the positions that it sees as it may, in random order."""
    chosen = torch.full((sum(count for count, _ in batch.requests), top_k), -1, dtype=torch.int32)
    seen = [at + 1 for count, length in batch.requests for at in range(length - count, length)]
    for row, number in zip(chosen, seen, strict=True):
        found = torch.randperm(number, generator=source)[:top_k]
        row[: len(found)] = found
    return chosen


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    spec = SparseMlaSpec(LITE, 512)
    batches = (Batch(((1, 2048),) * 4), Batch(((512, 2048),)))
    return [Setup(in_dtype(spec, d), batch) for d in DTYPES[:2] for batch in batches]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
