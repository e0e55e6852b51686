"""Cases of slot `tree_attention`: as those of `attention`, with trees as the last tokens.

What must come out is computed node by node: each attends, as the last of a chain, to the tokens
before its tree, its ancestors and itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import PLAIN_LAYOUT, KVLayout, TreeAttentionSpec, TreeNodes
from hotshoe.slots.reference.attention import attend
from hotshoe.types.trees import ROOT, ancestors_of
from hotshoe_conformance.cases import attention
from hotshoe_conformance.cases.attention import (
    BASE,
    LLAMA,
    ROUNDED_OPERANDS,
    TANH_ERROR,
    AttentionProblem,
    Batch,
)
from hotshoe_conformance.cases.base import DTYPES, FAR, Cost, Setup, Suite, in_dtype
from hotshoe_conformance.place import Place, padded
from hotshoe_conformance.tolerance import Close, Expected

SLOT = "tree_attention"
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"num_kv_heads": 4},
    {"num_kv_heads": 1},
    {"num_heads": 14},
    {"head_dim": 80},
    {"head_dim": 128},
    {"head_dim": 256},
    {"block_size": 8},
    {"block_size": 64},
    {"scale": 0.5},
    {"softcap": 5.0},
    {"sinks": True},
    {"v_head_dim": 32},
    {"kv_dtype": "int8", "kv_scales": "token"},
)


@dataclass(frozen=True, slots=True)
class Trees:
    """Requests as in `Batch`, and how many of each one's last tokens are nodes.

    The token before the first node belongs to the step, too.
    """

    batch: Batch
    nodes: tuple[int, ...]


MIXED = Trees(Batch(((1, 45), (9, 30), (7, 7), (5, 40), (14, 94)), 128, 3), (0, 8, 6, 0, 11))
SHAPES = (
    Trees(Batch(((5, 5),)), (4,)),
    Trees(Batch(((65, 300),)), (64,)),
    Trees(Batch(((17, 17), (33, 48), (1, 64)), gap=64), (16, 32, 0)),
    Trees(Batch(((65, 1000), (129, 129), (64, 600))), (64, 0, 63)),
    Trees(Batch(tuple((9, 9 + 13 * n % 90) for n in range(40))), (8,) * 40),
)


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    base = TreeAttentionSpec(BASE, PLAIN_LAYOUT)
    varied = [replace(base, attention=replace(BASE, **changes)) for changes in VARIATIONS]
    varied += [replace(base, layout=layout) for layout in layouts]
    found = [Setup(in_dtype(spec, d), MIXED, True) for d in DTYPES for spec in (base, *varied)]
    found += [
        Setup(in_dtype(base, dtype), shape, i == 0)
        for dtype in DTYPES
        for i, shape in enumerate(SHAPES)
    ]
    far = replace(MIXED, batch=replace(MIXED.batch, far=FAR))
    return [*found, Setup(in_dtype(base, "bfloat16"), far, bytes=4 * FAR + (1 << 20))]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    setup = attention._draw(rng, layouts)
    spec = replace(setup.spec, window=None, alibi=None)
    requests = [
        (rng.randrange(1, min(length, 66) + 1), length) for _, length in setup.shape.requests
    ]
    nodes = tuple(rng.choice((0, rng.randrange(0, min(count, 65)))) for count, _ in requests)
    batch = replace(setup.shape, requests=tuple(requests))
    plain = [layout for layout in layouts if not layout.wide_values]
    layout = rng.choice((PLAIN_LAYOUT, *plain))
    return Setup(TreeAttentionSpec(spec, layout), Trees(batch, nodes))


@dataclass(slots=True)
class TreeProblem:
    """The requests as those of `attention`, and the parents of each one's nodes."""

    spec: TreeAttentionSpec
    inner: AttentionProblem
    parents: list[list[int]]

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        return {"out": self.prepare(op, place)()}

    def prepare(self, op: Any, place: Place) -> Callable[[], Tensor]:
        inner = self.inner
        q = place(padded(inner.q, inner.batch.gap))
        cache, step = inner._cache(self.spec.layout, place), inner._metadata(place)
        masks = torch.zeros(len(inner.q), dtype=torch.int64)
        end = 0
        for (count, _), parents in zip(inner.batch.requests, self.parents, strict=True):
            end += count
            # A mask of 64 bits is a signed number here.
            signed = [m - (1 << 64) if m >> 63 else m for m in ancestors_of(parents)]
            masks[end - len(parents) : end] = torch.tensor(signed, dtype=torch.int64)
        counts = torch.tensor([len(parents) for parents in self.parents], dtype=torch.int32)
        nodes = TreeNodes(place(counts), place(masks))
        sinks = None if inner.sinks is None else place(inner.sinks)
        return lambda: op(q, cache, step, nodes, sinks)

    def expected(self) -> Mapping[str, Expected]:
        spec, inner = self.spec.attention, self.inner
        rows = []
        queries = inner.q.float().split([count for count, _ in inner.batch.requests])
        every = zip(queries, inner.keys, inner.values, self.parents, strict=True)
        for q, k, v, parents in every:
            both = torch.cat((v.float(), v.float().abs()), dim=-1)
            for at, seen in zip(range(len(q)), _seen(len(q), len(k), parents), strict=True):
                own = k[seen].float(), both[seen]
                rows.append(attend(spec, q[at : at + 1], *own, inner.sinks))
        value, magnitude = (part.flatten(1) for part in torch.cat(rows).chunk(2, dim=-1))
        slack = 2 * TANH_ERROR * (spec.softcap or 0.0) * magnitude
        if spec.dtype != "float32" or spec.kv_dtype != "float32":
            magnitude = ROUNDED_OPERANDS * magnitude
        return {"out": Close(value, spec.dtype, magnitude, slack)}

    def alone(self) -> tuple[TreeProblem, slice]:
        at = len(self.parents) // 2
        inner, rows = self.inner.alone()
        return replace(self, inner=inner, parents=self.parents[at : at + 1]), rows

    def cost(self) -> Cost:
        return self.inner.cost()


def _seen(count: int, length: int, parents: Sequence[int]) -> list[list[int]]:
    """Return the places that each of a request's queries sees, its own last."""
    first = length - len(parents)
    found = [list(range(at + 1)) for at in range(length - count, first)]
    lines: list[list[int]] = []
    for node, parent in enumerate(parents):
        lines.append([*([] if parent == ROOT else lines[parent]), first + node])
    return found + [[*range(first), *line] for line in lines]


def _problem(setup: Setup, source: torch.Generator) -> TreeProblem:
    spec, shape = setup.spec, setup.shape
    inner = attention._problem(Setup(spec.attention, shape.batch), source)
    parents = [
        [int(torch.randint(-1, node, (), generator=source)) if node else ROOT for node in range(n)]
        for n in shape.nodes
    ]
    return TreeProblem(spec, inner, parents)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    shape = Trees(Batch(((17, 2048),) * 4), (16,) * 4)
    spec = TreeAttentionSpec(LLAMA, layouts[0] if layouts else PLAIN_LAYOUT)
    return [Setup(in_dtype(spec, d), shape) for d in DTYPES[:2]]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
